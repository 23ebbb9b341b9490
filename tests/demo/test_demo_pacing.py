"""Steps of a least duration: real work first, then what is left of the floor; a slow step is not made slower."""

from __future__ import annotations

import pytest

from engine_shim.runners.pacing import LeastStepRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StepPlan


class Time:
    """A clock that a runner's work and a wait move on."""

    def __init__(self) -> None:
        self.at = 100.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.at

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds


@pytest.mark.parametrize(("work_s", "takes_s", "waits"), [(0.01, 0.024, 1), (0.024, 0.024, 0), (0.3, 0.3, 0)])
def test_a_step_takes_its_work_or_the_floor(work_s: float, takes_s: float, waits: int) -> None:
    """The longer of the two; tokens come through unchanged."""
    time = Time()

    class Working:
        def run(self, plan: StepPlan) -> tuple[list[int], float]:
            time.at += work_s
            return [7], work_s

    tokens, seconds = LeastStepRunner(Working(), 0.024, time, time.wait).run(StepPlan())  # type: ignore[arg-type]
    assert tokens == [7]
    assert seconds == pytest.approx(takes_s)
    assert len(time.waits) == waits


@pytest.mark.parametrize("least_step_s", [-0.1, 11.0])
def test_an_impossible_floor_is_refused_by_name(least_step_s: float) -> None:
    """The setting's error names it."""
    with pytest.raises(ValueError, match="least_step_s"):
        EngineSettings(least_step_s=least_step_s)
