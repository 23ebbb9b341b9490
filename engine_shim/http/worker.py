"""The thread that steps the engine, and the bridge between it and the event loop.

What a step brought goes to the event loop in one call, however many requests it concerns. When a step raises, the
engine is dead, as a real one would be: every request ends with `error`, nothing is accepted any more, and `failure`
says why.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from engine_shim.engine.engine import Engine
from engine_shim.http.generation import Generation, Progress
from engine_shim.model.tokens import TextStream
from engine_shim.request import Request

IDLE_TICK_S = 0.1
log = logging.getLogger("engine_shim.http.worker")


class EngineWorker:
    """Runs one engine. `submit`, `abort`, `start` and `stop` belong to the event loop's thread.

    `tick` is called between steps when there is nothing to do, about every `IDLE_TICK_S` seconds.
    """

    def __init__(
        self,
        engine: Engine,
        tick: Callable[[], None],
        loses_abort: Callable[[], bool] = lambda: False,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure = ""
        self.stopping = threading.Event()  # a paced runner waits on it, so that shutdown does not wait for a step
        self._engine = engine
        self._tick = tick
        self._before_step = before_step  # faults may change what the step meets
        self._loses_abort = loses_abort  # a fault: the engine does not hear of clients that go
        self._wake = threading.Event()
        self._touched: dict[Generation, None] = {}  # by the step under way, in the engine's thread
        self._live: set[Generation] = set()  # in the event loop's thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step; call it from a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End after the step under way; requests still in the engine end with `error`."""
        self.stopping.set()
        self._wake.set()
        self._thread.join(timeout=10)
        self._fail_all()

    def submit(self, request: Request, text: TextStream, eos_token_ids: tuple[int, ...] = ()) -> Generation:
        """Hand a request to the engine; RequestRejected, with the reason, if it can never be served."""
        generation = Generation(request, text, eos_token_ids, self._touch)
        if self.failure or self.stopping.is_set():
            generation.put(Progress("", 0, "error"))
            return generation
        self._live.add(generation)
        try:
            self._engine.add(request)
        finally:
            self._wake.set()
        return generation

    def abort(self, request_id: str) -> None:
        """Take a request out before the next step; no matter if it has left already."""
        if self._loses_abort():
            return
        self._engine.abort(request_id)
        self._wake.set()

    def _touch(self, generation: Generation) -> None:
        self._touched[generation] = None

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._before_step()
                busy = self._engine.step()
                self._hand_over()
                if not busy and not self._engine.has_mail():
                    self._tick()
                    self._wake.wait(IDLE_TICK_S)
                    self._wake.clear()
        except Exception as error:
            log.exception("the engine is dead")
            self.failure = f"The engine died: {type(error).__name__}."
            self._engine.crash()  # telemetry hears of the requests that are lost
            self._call_loop(self._fail_all)

    def _hand_over(self) -> None:
        if self._touched:
            news = [(generation, generation.collect()) for generation in self._touched]
            self._touched = {}
            self._call_loop(lambda: self._deliver(news))

    def _call_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop has closed while this thread finished its last step: nobody listens any more
            log.info("the server has gone before the engine's last step ended")

    def _deliver(self, news: list[tuple[Generation, Progress]]) -> None:
        for generation, progress in news:
            generation.put(progress)
            if progress.finish_reason:
                self._live.discard(generation)

    def _fail_all(self) -> None:
        for generation in self._live:
            generation.put(Progress("", 0, "error"))
        self._live.clear()
