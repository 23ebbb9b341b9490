"""How many seconds of a modelled engine fit into one: alone, and with the agent behind it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial

from engine_shim.scenario import load_scenario
from engine_shim.simulation import simulate
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


def with_agent() -> Row:
    """The same and the pipeline on what it shows, read back from the stream."""
    from gpuwatch.config import Config
    from gpuwatch.pipeline import Pipeline
    from gpuwatch.sources.capture import calls, read_capture

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
