"""Builds what notices changes: the source of change events, and for each engine the one that asks it who it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ...config import Config
from ...model import Subject
from ..gpu.ownership.clues import is_local
from ..page.self_description import SelfDescription
from ..page.source import EngineSource
from ..poll import Source
from .known import KnownFacts
from .podinfo import pod_facts
from .source import ChangesSource


def change_sources(
    config: Config,
    sources: Iterable[Source],
    pids: Callable[[], Mapping[Subject, int]],
    host: str,
    known: KnownFacts,
    environ: Mapping[str, str],
) -> list[Source]:
    """The sources. `known` remembers what was seen; an engine on the loopback shares the agent's pod."""
    folder = Path(config.machine.podinfo)
    changes = ChangesSource(
        Subject(host=host),
        pids,
        hertz=config.lanes.changes_hz,
        known=known,
        pod=lambda: pod_facts(folder, environ),
        engines=[Subject(engine=target.name) for target in config.engines if not target.pod and is_local(target)],
        proc=Path(config.machine.proc),
    )
    if not config.machine.ask_engines:
        return [changes]
    urls = {target.name: target.url for target in config.engines}
    asking: list[Source] = [
        SelfDescription(source, urls[source.subject.engine], changes.saw, known.key, config.lanes.timeout_s)
        for source in sources
        if isinstance(source, EngineSource)
    ]
    return [changes, *asking]
