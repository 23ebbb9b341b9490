"""The demo for real: the bundled engine on PyTorch in its own process, HTTP clients, and the agent that `gpuwatch run`
is, here with its state in a temporary folder. Everything happens in real time.

The agent's journal becomes the capsule; when the clients stop is not part of it, or a crowd of aborts would end the story.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..clock import WallClock
from ..config import Config, ConfigError, EngineTarget
from ..recording.capsule import CapsuleWriter
from .child import Child, problem_in
from .files import CAPSULE
from .load import Load
from .problem import DemoError
from .schedule import Header, read_schedule
from .stage import Stage

if TYPE_CHECKING:
    from ..agent.agent import Agent

ENGINE = "shim"
LEAD_S = 3.0
"""Between the engine's first word and the first request; faults are shifted by it."""
AFTER_S = 3.0
_START_S = 180.0
_FRAME_S = 0.1
_SERVING = re.compile(rb"serving (\S+) on http://")


def play(scenario: str, seed: int, folder: Path, config: Config, stage: Stage) -> None:
    """Play the whole scenario and leave its capsule. Raises DemoError, and KeyboardInterrupt after a clean end."""
    header, arrivals = read_schedule(scenario, seed)
    if header.about:
        stage.say(" ".join(header.about.split()))
    stage.say(f"starting the engine on PyTorch; then {header.duration_s:.0f} s in real time")
    clock = WallClock()
    with tempfile.TemporaryDirectory(prefix="gpuwatch-demo-") as name:
        private = Path(name)
        engine_port, otlp_port = _free_port(), _free_port()
        with _engine(header, private / "ring", engine_port, otlp_port) as engine:
            config = _config(config, private, engine.process.pid, engine_port, otlp_port)
            try:
                model = _await_engine(engine)
                url = config.engines[0].url
                load = Load(url, model, arrivals, seed, clock.now)
                asyncio.run(_run(config, clock, engine, load, header, stage))
            except ConfigError as error:
                raise DemoError(str(error)) from error
            finally:
                _write_capsule(folder, private, config, {"scenario": scenario, "device": "torch", "seed": seed})


def _engine(header: Header, ring_dir: Path, port: int, otlp_port: int) -> Child:
    ring_dir.mkdir()
    return Child(
        [
            "-m", "engine_shim", "serve", "--runner", "torch", "--port", str(port), "--engine-name", ENGINE,
            "--ring", "--ring-dir", str(ring_dir), "--otlp-endpoint", f"http://127.0.0.1:{otlp_port}",
            *header.serve, *header.fault_options(LEAD_S),
        ]
    )  # fmt: skip


def _config(config: Config, private: Path, pid: int, port: int, otlp_port: int) -> Config:
    """The user's settings, with this engine, and with state and addresses that disturb nobody."""
    ring = private / "ring" / f"{ENGINE}-0.ring"
    target = EngineTarget(f"http://127.0.0.1:{port}", ENGINE, ring=str(ring), pid=pid)
    return replace(
        config, engines=(target,), state_dir=str(private / "state"), ring_dir=str(private / "ring"),
        listen="127.0.0.1:0", otlp_listen=f"127.0.0.1:{otlp_port}", alertmanager=None, webhook=None, jsonl=None,
    )  # fmt: skip


def _await_engine(engine: Child) -> str:
    """Wait for the engine's first line and return the name of its model. Raises DemoError."""
    with _alarm(_START_S):
        for line in engine.output:
            if found := _SERVING.search(line):
                return found.group(1).decode("utf-8", "replace")
    raise DemoError(problem_in(engine.complaint()) or f"the engine ended with exit code {engine.process.wait()}")


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise DemoError when the block takes longer; in the main thread, where alarms can be had."""

    def late(number: int, frame: object) -> None:
        raise DemoError(f"the engine did not start within {seconds:.0f} s")

    try:
        before = signal.signal(signal.SIGALRM, late)
    except ValueError:  # another thread: without a limit
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _run(config: Config, clock: WallClock, engine: Child, load: Load, header: Header, stage: Stage) -> None:
    """Agent and clients until the scenario ends, the engine dies or someone stops it."""
    from ..agent.agent import Agent

    stop, interrupted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        interrupted.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    agent = Agent(config, clock, host="demo")
    await agent.start()
    await agent.warmed()
    watching = asyncio.create_task(agent.run(stop))
    clients = asyncio.create_task(_later(load))
    try:
        async with asyncio.timeout(LEAD_S + header.duration_s + AFTER_S):
            await _show(agent, engine, load, header, stage, stop)
    except TimeoutError:
        stop.set()  # the scenario's end
    finally:
        stop.set()
        await watching
        await agent.close()
        clients.cancel()
        await asyncio.gather(clients, return_exceptions=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    if interrupted.is_set():
        raise KeyboardInterrupt


async def _later(load: Load) -> None:
    await asyncio.sleep(LEAD_S)
    await load.play()


async def _show(agent: Agent, engine: Child, load: Load, header: Header, stage: Stage, stop: asyncio.Event) -> None:
    """Put each judged second on the screen until `stop`. Raises DemoError when the engine dies and should not."""
    shown = None
    while not stop.is_set():
        last = agent.watch.last
        if last is not None and last is not shown:
            shown = last
            stage.note = f" · {load.counts['answered']} of {load.counts['sent']} requests answered"
            stage.show(last, agent.watch.pipeline)
        if engine.ended and not header.ends_the_engine:
            raise DemoError(problem_in(engine.complaint()) or "the engine died")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _FRAME_S)


def _write_capsule(folder: Path, private: Path, config: Config, meta: dict[str, str | float]) -> None:
    """The journal as a capsule; nothing where nothing was judged."""
    from ..recording.journal import Journal

    if not (private / "state" / "journal").is_dir():
        return
    calls = list(Journal(private / "state" / "journal").calls())
    if calls:
        with CapsuleWriter(folder / CAPSULE, config, clock="real", meta=meta) as writer:
            for now, batches in calls:
                writer.append(now, batches)


def _free_port() -> int:
    """A port that was free a moment ago. Should another take it, the engine or the agent says so."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
