"""A load played against an engine in virtual time, and what a study needs of it: every step and every request.

Nothing is written or bounded: studies are minutes of virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ..clock import VirtualClock
from ..demand.arrivals import Demand
from ..demand.streams import Stream, read_stream
from ..demand.tables import LoadTable
from ..devices.profile_file import device_named
from ..engine.engine import Engine
from ..request import Request, Stage
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..simulation.play import play


@dataclass
class Played:
    """Steps by field, oldest first, and requests in the order in which they left. Times are seconds from the start."""

    settings: EngineSettings
    seconds: float
    start: float
    steps: dict[str, np.ndarray] = field(default_factory=dict)
    left: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)  # at the end

    def time_mean(self, values: np.ndarray, from_s: float = 0.0) -> float:
        """The mean of a value per step, weighted by how long each step took, from `from_s` on."""
        lasted = self.steps["ended_at"] - self.steps["begun_at"]
        late = self.steps["begun_at"] >= self.start + from_s
        return float(np.average(values[late], weights=lasted[late]))

    def served(self, from_s: float = 0.0) -> list[Request]:
        """Requests that ended by themselves after `from_s`."""
        return [r for r in self.left if r.finish_reason in ("stop", "length") and r.finished_at >= self.start + from_s]


class _Notes:
    """The engine's telemetry and the simulation's observer: keeps everything."""

    def __init__(self, played: Played, demand: Demand) -> None:
        self._played, self._demand = played, demand
        self._blocks: list[dict[str, np.ndarray]] = []

    def step_begun(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def step_ended(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """The request knows it."""

    def finished(self, request: Request) -> None:
        """See step.Telemetry."""
        self._played.left.append(request)
        self._demand.finished(request)

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """See simulate.Observer."""
        self._blocks.append(columns)

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """Nothing is shown meanwhile."""

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """Studies have no outages."""

    def gather(self) -> None:
        """The blocks of steps as one."""
        names = self._blocks[0] if self._blocks else ()
        self._played.steps = {name: np.concatenate([block[name] for block in self._blocks]) for name in names}


def streams_of(loads: Sequence[Mapping[str, Any]], seconds: float) -> tuple[Stream, ...]:
    """Streams from [[load]] tables as in a scenario file; each needs a rate of its own. ScenarioError for bad ones."""
    rows = [msgspec.convert(load, LoadTable) for load in loads]
    return tuple(read_stream(row, index, seconds, "study") for index, row in enumerate(rows))


def play_load(
    engine: Mapping[str, Any],
    loads: Sequence[Mapping[str, Any]],
    *,
    seconds: float,
    device: str = "h100",
    seed: int = 1,
) -> Played:
    """Play `loads` ([[load]] tables with rate_per_s or concurrency) against an engine of these settings."""
    settings, profile, clock = EngineSettings.from_table(engine), device_named(device), VirtualClock()
    blocks = settings.pool_blocks(profile)
    streams = streams_of(loads, seconds)
    demand = Demand(
        streams, [s.rate_per_s or 0.0 for s in streams],
        pool_tokens=blocks * settings.block_tokens, seed=seed, start=clock.now(),
    )  # fmt: skip
    played = Played(settings, seconds, clock.now())
    notes = _Notes(played, demand)
    running = Engine(settings, blocks, ModelRunner(settings, profile), clock, notes)
    play(running, demand, until=clock.now() + seconds, observer=notes)
    notes.gather()
    played.waiting = list(running.scheduler.waiting)
    return played
