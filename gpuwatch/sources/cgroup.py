"""CPU throttling of a cgroup, version 2 or 1: throttled periods ÷ periods between two looks.

A sidecar sees its own cgroup; the engine's is under `/proc/<pid>/root` where the pid namespace is shared and reading it
is allowed.
"""

from __future__ import annotations

import math
from pathlib import Path

_FILES = ("sys/fs/cgroup/cpu.stat", "sys/fs/cgroup/cpu/cpu.stat", "sys/fs/cgroup/cpu,cpuacct/cpu.stat")
_BYTES = 16 * 1024


class CpuThrottling:
    """Reads `cpu.stat` below `root` (a Path like `/proc/123/root`)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last: tuple[float, float] | None = None

    def ratio(self) -> float:
        """Throttled periods ÷ periods since the last call; NaN at the first, without periods, or unreadable."""
        counts = self._counts()
        last, self._last = self._last, counts
        if counts is None or last is None:
            return math.nan
        periods, throttled = counts[0] - last[0], counts[1] - last[1]
        return throttled / periods if periods > 0 and 0 <= throttled <= periods else math.nan

    def _counts(self) -> tuple[float, float] | None:
        for name in _FILES:
            try:
                with (self._root / name).open("rb") as file:
                    text = file.read(_BYTES).decode("ascii", "replace")
            except OSError:
                continue
            stats = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
            try:
                return float(stats["nr_periods"]), float(stats["nr_throttled"])
            except (KeyError, ValueError):
                return None  # the CPU controller is off here
        return None
