"""How many seconds of an engine fit into a CPU second, when nobody looks on: `python -m engine_shim.studies.virtual_time`.

A 7B model on one H100, with all of the scheduler's book-keeping and exact records of every step, without telemetry and
without an agent. `--day` plays a whole day of one engine besides (minutes). Seconds are CPU seconds of this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..clock import VirtualClock
from ..demand.arrivals import Demand
from ..devices.profile_file import device_named
from ..engine.engine import Engine
from ..request import Request
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..simulation.play import play
from .played import streams_of
from .silence import Silence

DAY_S = 86_400.0
_PROMPTS = {"lognormal": 400, "sigma": 0.8, "min": 16, "max": 4000}
# Each keeps about forty requests running, but for the day, which swings between ten and seventy.
LOADS: dict[str, Mapping[str, Any]] = {
    "40 running, answers of 900 tokens": {
        "rate_per_s": 4.2, "prompt_tokens": _PROMPTS,
        "output_tokens": {"lognormal": 900, "sigma": 0.5, "min": 20, "max": 4000},
    },
    "40 running, answers of 350 tokens": {
        "rate_per_s": 11.0, "prompt_tokens": _PROMPTS,
        "output_tokens": {"lognormal": 350, "sigma": 0.6, "min": 20, "max": 2000},
    },
    "a day, answers of 350 tokens": {
        "arrivals": "diurnal", "period_s": DAY_S, "swing_ratio": 0.8, "rate_per_s": 2.5, "prompt_tokens": _PROMPTS,
        "output_tokens": {"lognormal": 350, "sigma": 0.6, "min": 20, "max": 2000},
    },
}  # fmt: skip
FORTY, CHAT, DAY = LOADS


@dataclass(frozen=True, slots=True)
class Speed:
    """What was simulated, and what it took."""

    simulated_s: float
    cpu_s: float
    steps: int
    requests: int
    running_mean: float  # over steps

    @property
    def times_real(self) -> float:
        """Simulated seconds in a CPU second."""
        return self.simulated_s / self.cpu_s

    @property
    def step_seconds(self) -> float:
        """CPU seconds of a step, all else included."""
        return self.cpu_s / self.steps


class _Count(Silence):
    """Counts what it is told and keeps nothing."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self.steps_seen = self.requests = 0
        self.running_sum = 0.0

    def finished(self, request: Request) -> None:
        """See step.Telemetry."""
        self.requests += 1
        self._demand.finished(request)

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """See simulate.Observer."""
        self.steps_seen += len(columns["step"])
        self.running_sum += float(columns["running"].sum())

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """See simulate.Observer."""

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """See simulate.Observer."""


def speed(load: str, seconds: float, *, fuse: bool = True, seed: int = 1) -> Speed:
    """Play one of LOADS for so many simulated seconds."""
    settings, device, clock = EngineSettings(model="7b", max_num_seqs=128), device_named("h100"), VirtualClock()
    blocks = settings.pool_blocks(device)
    streams = streams_of([LOADS[load]], seconds)
    rates = [stream.rate_per_s or 0.0 for stream in streams]
    demand = Demand(streams, rates, pool_tokens=blocks * settings.block_tokens, seed=seed, start=clock.now())
    count = _Count(demand)
    engine = Engine(settings, blocks, ModelRunner(settings, device), clock, count)
    begun = time.process_time()
    play(engine, demand, until=clock.now() + seconds, observer=count, fuse=fuse)
    cpu_s = time.process_time() - begun
    return Speed(seconds, cpu_s, count.steps_seen, count.requests, count.running_sum / count.steps_seen)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    if set(arguments) - {"--day"}:
        print("usage: python -m engine_shim.studies.virtual_time [--day]", file=sys.stderr)
        return 2
    print(
        f"{'load':<36} {'simulated':>10} {'requests':>9} {'running':>8} {'steps':>10} {'µs a step':>10} {'× real time':>12}"
    )
    runs = [(FORTY, 600.0, True), (FORTY, 600.0, False), (CHAT, 600.0, True), (CHAT, 600.0, False)]
    if "--day" in arguments:
        runs.append((DAY, DAY_S, True))
    for load, seconds, fuse in runs:
        found = speed(load, seconds, fuse=fuse)
        print(
            f"{load if fuse else '  step by step':<36} {found.simulated_s:>8,.0f} s {found.requests:>9,} "
            f"{found.running_mean:>8.1f} {found.steps:>10,} {found.step_seconds * 1e6:>10.1f} {found.times_real:>12,.0f}"
        )
        if load == DAY:
            print(f"a day of one engine: {found.cpu_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
