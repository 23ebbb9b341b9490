"""Another tenant on the engine's device: a second engine or a batch job that takes its part of bandwidth and SMs.

Without isolation the device's counters add both up, and the engine has what the neighbor leaves while that one works.
With isolation (MIG-like) the device is cut: the neighbor's part is gone from the first second to the last, whether it
works or not, nothing interferes, and the engine's counters show the engine alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..devices.state import DeviceState
from .interval import FOREVER, Window


@dataclass(frozen=True)
class Neighbor(Window):
    """A tenant that works from `at` to `until`: `on_s` seconds of work, then `off_s` of rest, again and again."""

    dram_share: float = 0.0
    sm_share: float = 0.0
    on_s: float = FOREVER
    off_s: float = 0.0
    isolated: bool = False

    def acts(self, now: float) -> bool:
        """Whether it makes a difference at `now`; a cut device differs always."""
        return self.isolated or super().acts(now)

    def works(self, now: float) -> bool:
        """Whether the neighbor works at `now`."""
        if not self.at <= now < self.until:
            return False
        return self.off_s == 0 or self.on_s == FOREVER or (now - self.at) % (self.on_s + self.off_s) < self.on_s

    def change(self, state: DeviceState, now: float, started_at: float) -> DeviceState:
        """The device's condition with this tenant on it."""
        if not self.isolated and not self.works(now):
            return state
        left = replace(
            state,
            compute_left_ratio=state.compute_left_ratio * (1.0 - self.sm_share),
            bandwidth_left_ratio=state.bandwidth_left_ratio * (1.0 - self.dram_share),
        )
        if self.isolated:
            return left
        return replace(
            left,
            taken_sm_ratio=min(left.taken_sm_ratio + self.sm_share, 1.0),
            taken_dram_ratio=min(left.taken_dram_ratio + self.dram_share, 1.0),
        )

    def next_change(self, now: float) -> float:
        """When the condition changes next, after `now`."""
        if self.isolated:
            return FOREVER
        if now < self.at:
            return self.at
        if now >= self.until:
            return FOREVER
        if self.off_s == 0 or self.on_s == FOREVER:
            return self.until
        period_s = self.on_s + self.off_s
        begun = self.at + math.floor((now - self.at) / period_s) * period_s
        edges = (begun + self.on_s, begun + period_s, begun + period_s + self.on_s)
        return min(next(edge for edge in edges if edge > now), self.until)
