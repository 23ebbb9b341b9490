"""What a simulated run brings to the agent, as pipeline calls on a one-second grid: the input of several rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from engine_shim.demand.scenario import load_scenario
from engine_shim.simulation.assemble import simulate
from gpuwatch.model import Batch

Call = tuple[float, tuple[Batch, ...]]

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@cache
def world(scenario: str, seed: int = 1, device: str = "h100", mode: str = "full") -> bytes:
    """The world stream of a scenario (docs/capture.md)."""
    out = io.BytesIO()
    simulate(load_scenario(SCENARIOS / f"{scenario}.toml", device), out, device=device, seed=seed, mode=mode)
    return out.getvalue()


@cache
def calls(scenario: str, seed: int = 1, device: str = "h100", mode: str = "full") -> tuple[Call, ...]:
    """The same, as the agent's capture source reads it."""
    return tuple(_read(world(scenario, seed, device, mode)))


def _read(stream: bytes) -> Iterator[Call]:
    from gpuwatch.sources.files.capture import calls as calls_of
    from gpuwatch.sources.files.capture import read_capture

    for now, batches in calls_of(read_capture(io.BytesIO(stream))):
        yield now, tuple(batches)
