"""Steps that take at least a given time: a small model on a CPU then stands for a slower device of steady speed.

Without it, the speed of a real engine on a shared machine is the machine's mood. The work is really computed, and a
step that takes longer than the floor takes what it takes.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_shim.clock import Clock
from engine_shim.step import Runner, StepPlan


class LeastStepRunner:
    """A runner whose steps take at least `least_s`. `wait` lets seconds pass."""

    def __init__(self, inner: Runner, least_s: float, clock: Clock, wait: Callable[[float], object]) -> None:
        self.inner = inner
        self._least_s = least_s
        self._clock = clock
        self._wait = wait

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """As the inner runner, and then what is left of the floor."""
        begun = self._clock.now()
        tokens, _ = self.inner.run(plan)
        left_s = begun + self._least_s - self._clock.now()
        if left_s > 0:
            self._wait(left_s)
        return tokens, self._clock.now() - begun
