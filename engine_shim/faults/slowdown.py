"""How fast the device works: slowdowns, and when a step ends that meets them on its way.

A *slowdown* is a speed at which the device works between two clock times: 0 while a step hangs, 1/factor while steps
are slow. A step's end follows from its work and the speeds on its way; overlapping slowdowns multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .interval import FOREVER

SLOW_TRANSFER = "slow_transfer"  # a slowdown of the link between engines instead of a device
HUNG_COLLECTIVE = "hung_collective"


@dataclass(frozen=True)
class Slowdown:
    """The device works at `speed` (1 is normal, 0 stands still) from `at` to `until`, clock times.

    `gpu` is the one whose collective hangs, of a tensor-parallel engine.
    """

    at: float
    until: float
    speed: float
    kind: str = "slow_step"
    gpu: int = 0


class Slowdowns:
    """All slowdowns of a run, as questions about time."""

    def __init__(self, slowdowns: Sequence[Slowdown]) -> None:
        self._slowdowns = list(slowdowns)
        self._edges = sorted({edge for fault in slowdowns for edge in (fault.at, fault.until)})

    def speed(self, now: float) -> float:
        """How fast the device works at `now`."""
        return math.prod(fault.speed for fault in self._slowdowns if fault.at <= now < fault.until)

    def next_edge(self, now: float) -> float:
        """When the speed next changes, after `now`."""
        return next((edge for edge in self._edges if edge > now), FOREVER)

    def hung_gpu(self, now: float) -> int | None:
        """The GPU whose collective hangs at `now`; None if none does."""
        hung = (f.gpu for f in self._slowdowns if f.kind == HUNG_COLLECTIVE and f.at <= now < f.until)
        return next(hung, None)

    def step_end(self, begun: float, seconds: float) -> float:
        """When a step that begins at `begun` and is `seconds` of work ends; FOREVER if it never does."""
        if self.speed(begun) == 1.0 and begun + seconds <= self.next_edge(begun):
            return begun + seconds
        now, left = begun, seconds
        while True:
            speed, edge = self.speed(now), self.next_edge(now)
            if speed > 0 and now + left / speed <= edge:
                return now + left / speed
            if edge == FOREVER:
                return FOREVER
            left -= (edge - now) * speed
            now = edge
