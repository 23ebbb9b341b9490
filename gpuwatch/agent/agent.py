"""The composition root: the only module that knows every part. Builds an agent from a configuration and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..clock import WallClock
from ..config import Config, ConfigError, check_rules
from ..model import Subject
from ..pipeline import Pipeline
from ..recording.recorder import Recorder
from ..rules import load_rules
from ..server.answers import Desk
from ..server.build import grpc_server, span_desk
from ..server.http import HttpServer, bind
from ..server.routes import Guard, api_app, otlp_app
from ..sinks.delivery import Delivery, Sink
from ..sinks.store import Store
from ..sources.changes.build import change_sources
from ..sources.changes.known import KnownFacts
from ..sources.changes.source import ChangesSource
from ..sources.gpu.dcgm import DcgmSource
from ..sources.gpu.devices import device_sources
from ..sources.gpu.ownership.build import ownership_source
from ..sources.gpu.ownership.source import OwnershipSource
from ..sources.host.build import engine_processes, host_sources
from ..sources.page.source import EngineSource
from ..sources.poll import Clock, Poller, Source
from ..sources.ring.rings import EngineRings
from ..sources.spans.inbox import SpanInbox
from ..stacks import StackTaker
from .loop import Watch

if TYPE_CHECKING:
    from ..wire.grpc.server import GrpcServer

log = logging.getLogger(__name__)


class Agent:
    """One agent: everything built, nothing started. `start`, then `run` or single `tick`s, then `close`.

    `clock` is what sources and sinks are told; `host` names this machine. Raises ConfigError where the state folder cannot
    be used or belongs to a running agent.
    """

    def __init__(self, config: Config, clock: WallClock | None = None, host: str = "") -> None:
        check_rules(config, load_rules())
        self.config = config
        self.clock = clock or WallClock()
        host = host or platform.node() or "host"
        self._lock = _lock(config.state_path)
        known = KnownFacts(config.state_path / "changes.json")
        sources = build_sources(config, self.clock, host, known)
        self.changes = next(s for s in sources if isinstance(s, ChangesSource))
        self.inbox = next(s for s in sources if isinstance(s, SpanInbox))
        self.ownership = next((s for s in sources if isinstance(s, OwnershipSource)), None)
        spans = self.spans = span_desk(config, self.inbox)
        self.stacks = StackTaker(config.state_path / "stacks", self.changes.pids, keep=config.stacks.keep)
        store = Store(config.state_path / "incidents.db", keep=config.bounds.incidents_kept)
        self.watch = Watch(
            [Poller(source, timeout_s=config.lanes.timeout_s * 1.5) for source in sources],
            Recorder(config.state_path, config),
            Pipeline(config),
            store,
            [
                Delivery(sink, limit=config.bounds.sink_queue, delivered=store.delivered)
                for sink in build_sinks(config, self.clock)
            ],
            clock_event=lambda: self.clock.reanchor(host),
            saw=self.changes.saw,
            pumps=(self.stacks, *((spans.forwarder,) if spans.forwarder else ())),
            hear=(self.stacks.hear,) if config.stacks.on_incident else (),
            repost_s=config.alertmanager.repost_s if config.alertmanager else 60.0,
        )
        self.desk = Desk(config, self.watch, self.changes, spans, self.clock.now, host, self.ownership)
        self.servers: tuple[HttpServer | GrpcServer, ...] = ()
        self._warming: asyncio.Task[None] | None = None

    async def start(self, *, serve: bool = True) -> None:
        """Answer HTTP and begin to warm up from the journal; polls may begin at once."""
        if serve:
            self.servers = _servers(self.config, self.desk)
            for server in self.servers:
                await server.start()
        self._warming = asyncio.create_task(self.watch.warm_up(self.clock.now()))

    async def warmed(self) -> None:
        """Wait until the journal has been replayed."""
        if self._warming is not None:
            await self._warming

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until `stop` is set."""
        await self.watch.run(self.clock.now, stop)

    async def close(self) -> None:
        """Stop everything in order; within two seconds."""
        if self._warming is not None and not self._warming.done():
            self._warming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._warming
        await asyncio.gather(*(server.stop() for server in self.servers))
        await self.watch.close(self.clock.now())
        self._lock.close()


async def main(config: Config) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError before anything is started."""
    agent = Agent(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await agent.start()
        log.info("watching %s; http on %s", ", ".join(t.name for t in config.engines) or "nothing", config.listen)
        await agent.run(stop)
    finally:
        await agent.close()
        log.info("stopped")


def build_sources(config: Config, clock: Clock, host: str, known: KnownFacts | None = None) -> list[Source]:
    """Every source that the configuration asks for. `known`: what was seen of engines before."""
    sources: list[Source] = []
    rings: dict[Subject, EngineRings] = {}
    for target in config.engines:
        ring = rings[Subject(engine=target.name)] = EngineRings(
            target, str(config.ring_path), clock, config.lanes.steps_hz
        )
        if target.url:
            sources.append(EngineSource(target, clock, None, config.lanes, config.bounds, ring.is_live))
        if target.log:
            from ..sources.logs import LogSource

            sources.append(LogSource(target.log, Subject(engine=target.name), alone=not target.url))
    exporters = dict.fromkeys(target.gpu_url for target in config.engines if target.gpu_url)
    sources += (DcgmSource(url, clock, hertz=config.lanes.gpu_hz) for url in exporters)
    sources += rings.values()
    sources += device_sources(config.gpu, clock, host, config.lanes.gpu_hz)
    ownership = ownership_source(config, sources, rings.values(), clock, host, os.environ)
    if ownership is not None:
        sources.append(ownership)
    processes = engine_processes(config, rings)
    sources += host_sources(config, processes, host)

    def pids() -> Mapping[Subject, int]:
        return {subject: process.pid for subject, process in processes.items() if process.pid}

    sources += change_sources(config, sources, pids, host, known or KnownFacts(), os.environ)
    sources.append(SpanInbox(Subject(host=host), config.bounds.spans_waiting))
    return sources


def build_sinks(config: Config, clock: Clock) -> list[Sink]:
    """Every sink that the configuration asks for."""
    sinks: list[Sink] = []
    if config.alertmanager is not None:
        from ..sinks.alertmanager import AlertmanagerSink

        sinks.append(AlertmanagerSink(config.alertmanager, config.scope, clock.now))
    if config.webhook is not None:
        from ..sinks.webhook import WebhookSink

        sinks.append(WebhookSink(config.webhook))
    if config.jsonl is not None:
        from ..sinks.jsonl import JsonlSink

        sinks.append(JsonlSink(config.jsonl))
    return sinks


def _servers(config: Config, desk: Desk) -> tuple[HttpServer | GrpcServer, ...]:
    guard = Guard(lambda: _token(config.api_token_file), config.bounds.api_body_bytes)
    limit = config.bounds.otlp_body_bytes
    api = HttpServer(api_app(desk, guard, limit), bind(config.listen, "listen"))
    servers = api, HttpServer(otlp_app(desk, limit), bind(config.otlp_listen, "otlp_listen"))
    grpc = grpc_server(config, desk.spans)
    return servers if grpc is None else (*servers, grpc)


def _token(path: str) -> str:
    """Read at each request, so that a rotated token is used; an unreadable one admits nobody but the loopback."""
    if not path:
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return ""


def _lock(state: Path) -> TextIO:
    """Take the state folder for this process. Raises ConfigError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)  # what was seen is nobody else's business
        lock = (state / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"state_dir: {state}: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(f"state_dir: {state}: another agent is using it") from None
    return lock
