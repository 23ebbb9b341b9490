"""What happens to the device: clocks that are held down, a tenant that takes its part, steps that get slower and slower.

Each change says what it makes of the device's condition (devices/state.py) at a time; changes that overlap multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..devices.state import NORMAL, DeviceState
from .interval import FOREVER, Window

EVERY_GPU = -1
CREEP_EVERY_S = 2.0  # a step time that creeps is adjusted so often


@dataclass(frozen=True)
class ClockLimit(Window):
    """The SM clock is held at `ratio` of its maximum; `throttled`: the hardware says that it protects itself.

    `gpu` names one GPU of a tensor-parallel engine: the others wait for it in every collective.
    """

    ratio: float
    throttled: bool = True
    gpu: int = EVERY_GPU

    def change(self, state: DeviceState, now: float, started_at: float) -> DeviceState:
        """The condition with this fault in it."""
        return replace(
            state, clock_ratio=state.clock_ratio * self.ratio, throttled=state.throttled or self.throttled, gpu=self.gpu
        )

    def next_change(self, now: float) -> float:
        """When the condition changes next, after `now`."""
        return next((edge for edge in (self.at, self.until) if edge > now), FOREVER)


@dataclass(frozen=True)
class LowIdleClock(Window):
    """The clock falls to `ratio` while the device idles, and rises with the first kernel: costs nothing."""

    ratio: float

    def change(self, state: DeviceState, now: float, started_at: float) -> DeviceState:
        """The condition with this in it."""
        return replace(state, idle_clock_ratio=self.ratio)

    def next_change(self, now: float) -> float:
        """When the condition changes next, after `now`."""
        return next((edge for edge in (self.at, self.until) if edge > now), FOREVER)


@dataclass(frozen=True)
class StepCreep(Window):
    """Steps take `percent_per_min` longer with each minute of the engine's life, until it is restarted."""

    percent_per_min: float

    def change(self, state: DeviceState, now: float, started_at: float) -> DeviceState:
        """The condition with this fault in it."""
        minutes = max(now - max(self.at, started_at), 0.0) / 60.0
        return replace(state, step_factor=state.step_factor * (1.0 + self.percent_per_min / 100.0 * minutes))

    def next_change(self, now: float) -> float:
        """When the condition changes next, after `now`."""
        if not self.acts(now):
            return self.at if now < self.at else FOREVER
        ticks = math.floor((now - self.at) / CREEP_EVERY_S + 1e-9) + 1
        return min(self.at + ticks * CREEP_EVERY_S, self.until)


class DeviceChanges:
    """All that happens to the device in a run."""

    def __init__(self, changes: Sequence[ClockLimit | LowIdleClock | StepCreep]) -> None:
        self._changes = list(changes)

    def state(self, now: float, started_at: float) -> DeviceState:
        """The device's condition at `now`, for an engine whose life began at `started_at`."""
        state = NORMAL
        for change in self._changes:
            if change.acts(now):
                state = change.change(state, now, started_at)
        return state

    def next_change(self, now: float) -> float:
        """When the condition changes next, after `now`."""
        return min((change.next_change(now) for change in self._changes), default=FOREVER)
