"""How many seconds of a modelled engine fit into one: alone, and with the agent behind it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial

from engine_shim.demand.scenario import load_scenario
from engine_shim.simulation.assemble import simulate
from engine_shim.studies.virtual_time import DAY, DAY_S, FORTY, speed
from tests.bench.calls import SCENARIOS, world
from tests.bench.row import Row

SCENARIO = "batch_thrashing"


def alone() -> Row:
    """The engine with full telemetry, as `simulate` writes it."""
    scenario = load_scenario(SCENARIOS / f"{SCENARIO}.toml", "h100")
    speed = scenario.duration_s / min(_cpu(partial(_play, seed)) for seed in (1, 2, 3))
    return Row("× real time", 300, speed, higher_is_better=True,
        note=f"{SCENARIO} on h100, full world stream; the goal is 1,000",
    )  # fmt: skip


def forty() -> Row:
    """The engine and nobody who looks on, with forty requests at work; naive is the scheduler's loop, step by step."""
    fused, plain = (
        max((speed(FORTY, 200.0, fuse=fuse) for _ in range(3)), key=lambda s: s.times_real) for fuse in (True, False)
    )
    return Row("× real time", 300, fused.times_real, plain.times_real, higher_is_better=True,
        note=f"{fused.running_mean:.0f} running, answers of 900 tokens, {fused.step_seconds * 1e6:.1f} µs a step with exact "
        f"records ({plain.step_seconds * 1e6:.1f} step by step); the goal is 1,000",
    )  # fmt: skip


def day() -> Row:
    """A day of one engine whose load swings between ten and seventy requests at work; an hour of it is played."""
    played = speed(DAY, 3600.0)
    return Row("s", 120, played.cpu_s * DAY_S / played.simulated_s,
        note=f"from the first hour, which is an average one: {played.requests:,} requests; "
        "python -m engine_shim.studies.virtual_time --day plays all of it",
    )  # fmt: skip


def with_agent() -> Row:
    """The same and the pipeline on what it shows, read back from the stream."""
    from gpuwatch.config import Config
    from gpuwatch.pipeline import Pipeline
    from gpuwatch.sources.files.capture import calls, read_capture

    scenario = load_scenario(SCENARIOS / f"{SCENARIO}.toml", "h100")
    stream = world(SCENARIO)

    def agent() -> None:
        pipeline = Pipeline(Config())
        for now, batches in calls(read_capture(io.BytesIO(stream))):
            pipeline.step(now, batches)

    engine_s, agent_s = _cpu(partial(_play, 1)), min(_cpu(agent) for _ in range(3))
    return Row("× real time", 100, scenario.duration_s / (engine_s + agent_s), higher_is_better=True,
        note=f"agent alone: {agent_s / scenario.duration_s * 1e3:.2f} ms a simulated second (budget 2 ms); the goal is 200",
    )  # fmt: skip


def _play(seed: int) -> None:
    simulate(load_scenario(SCENARIOS / f"{SCENARIO}.toml", "h100"), io.BytesIO(), device="h100", seed=seed)


def _cpu(call: Callable[[], None]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun
