"""A real server around a real engine, on a free port, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from engine_shim.request import Request
from engine_shim.serving import ServeOptions, ServingEngine, build
from engine_shim.telemetry import EngineTelemetry


class Witness:
    """Passes telemetry on, and remembers who left the engine and at which step."""

    def __init__(self, inner: EngineTelemetry) -> None:
        self._inner = inner
        self._left: dict[str, tuple[Request, int]] = {}
        self._steps = 0
        self._changed = threading.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step_ended(self, record: list[float]) -> None:
        self._inner.step_ended(record)
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def finished(self, request: Request) -> None:
        self._inner.finished(request)
        with self._changed:
            self._left[request.id] = (request, self._steps)
            self._changed.notify_all()

    @property
    def steps(self) -> int:
        return self._steps

    def wait_for_steps(self, count: int, timeout_s: float = 20) -> None:
        """Wait until the engine has completed `count` steps."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._steps >= count, timeout_s), "the engine does not step"

    def wait_for_finished(self, count: int = 1, timeout_s: float = 20) -> list[tuple[Request, int]]:
        """Wait until `count` requests have left: each with the number of steps completed by then."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._left) >= count, timeout_s), "nothing left the engine"
            return list(self._left.values())


@dataclass
class LiveEngine:
    """Where it listens, its parts, and what its telemetry was told."""

    url: str
    serving: ServingEngine
    witness: Witness


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def live_engine(options: ServeOptions | None = None, **changes: Any) -> Iterator[LiveEngine]:
    """Serve until the block ends. `changes` are keys of EngineSettings."""
    serving = build(options or ServeOptions(), changes)
    witness = Witness(serving.telemetry)
    serving.engine.telemetry = witness
    config = uvicorn.Config(serving.server.app(), port=0, log_level="warning", access_log=False, ws="none")
    config.timeout_graceful_shutdown = 2
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.ready.wait(20), "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield LiveEngine(f"http://127.0.0.1:{port}", serving, witness)
    finally:
        server.should_exit = True
        thread.join(20)
        serving.telemetry.close()
    assert not thread.is_alive(), "the server did not stop"
