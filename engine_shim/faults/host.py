"""What happens on the host: a CPU quota that holds the engine's thread up, and a process that grows until it is killed.

A quota works as Linux' CFS does: in each period of `period_s` the process may use `quota_ratio` of a core; when that is
used up it stands still until the next period begins. The engine's thread uses CPU for the host part of a step and, as
real engines do, while it polls for the GPU's result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .interval import FOREVER, Window


@dataclass(frozen=True)
class CpuQuota(Window):
    """The engine's process may use `quota_ratio` of a core, in periods of `period_s`."""

    quota_ratio: float
    period_s: float = 0.1


@dataclass(frozen=True)
class HostMemoryLeak(Window):
    """Each finished request leaves `bytes_per_request` behind; beyond `limit_bytes` the kernel ends the process."""

    bytes_per_request: float
    limit_bytes: float = FOREVER
    down_s: float = FOREVER


@dataclass(frozen=True)
class IdleSpin(Window):
    """A thread polls with nothing to do: a whole core is busy, and nobody waits for it."""

    cores: float = 1.0


class Quota:
    """The account of one quota: CPU seconds used in the current period, and how many periods ran dry."""

    def __init__(self, fault: CpuQuota) -> None:
        self.fault = fault
        self._period = -1
        self._used_s = 0.0
        self._counted = 0  # periods looked at, and
        self._dry = 0  # how many of them were used up
        self._is_dry = False

    def runs_until(self, begun: float, cpu_s: float) -> float:
        """When `cpu_s` of work that begins at `begun` is done."""
        now, left_s = begun, cpu_s
        quota_s = self.fault.quota_ratio * self.fault.period_s
        self._enter(now)
        while True:
            can_s = quota_s - self._used_s
            ends = max(self._period_end(), now)
            if left_s <= can_s and now + left_s <= ends:
                self._used_s += left_s
                return now + left_s
            used_s = max(min(can_s, ends - now, left_s), 0.0)
            self._used_s += used_s
            left_s -= used_s
            if self._used_s >= quota_s - 1e-12 and not self._is_dry:
                self._is_dry = True
                self._dry += 1
            now = ends
            self._begin(self._period + 1)

    def throttled_ratio(self, now: float) -> float:
        """Periods that ran dry ÷ periods since the last question."""
        self._enter(now)
        ratio = self._dry / self._counted if self._counted else 0.0
        self._counted = self._dry = 0
        return min(ratio, 1.0)

    def _enter(self, now: float) -> None:
        # Clock times resolve a quarter of a microsecond: an edge that is missed by that is the edge.
        period = math.floor((now - self.fault.at) / self.fault.period_s + 1e-5)
        if period > self._period:
            self._begin(period)

    def _begin(self, period: int) -> None:
        self._counted += period - self._period
        self._period, self._used_s, self._is_dry = period, 0.0, False

    def _period_end(self) -> float:
        return self.fault.at + (self._period + 1) * self.fault.period_s
