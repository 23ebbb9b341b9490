"""Pressure stall information: the share of time in which tasks waited for CPU, memory or I/O.

The kernel's `total` counts microseconds in which at least one task waited (`some`) or all did (`full`); its growth over
the time between two looks is the share. The kernel's own averages (avg10 …) lag and are not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ..growth import Growth
from .kernel_files import number, read_or_empty

_SIGNALS = {
    ("cpu", "some"): "cpu_pressure_ratio",
    ("memory", "some"): "memory_pressure_ratio",
    ("memory", "full"): "memory_stalled_ratio",
    ("io", "some"): "io_pressure_ratio",
    ("io", "full"): "io_stalled_ratio",
}
_US = 1e-6


class Pressure:
    """Shares of time under pressure since the last look. `files`: resource → its file; `prefix`: `host_` or `cgroup_`."""

    def __init__(self, files: Mapping[str, Path], prefix: str) -> None:
        self._files = dict(files)
        self._prefix = prefix
        self._growth = {key: Growth() for key in _SIGNALS}

    def read(self, now: float) -> dict[str, float]:
        """What is known; empty on a kernel without pressure information."""
        found: dict[str, float] = {}
        for resource, path in self._files.items():
            totals = stall_seconds(read_or_empty(path, 4096))
            for (of, kind), signal in _SIGNALS.items():
                if of == resource and kind in totals:
                    share = self._growth[of, kind].per_second(totals[kind], now)
                    found[self._prefix + signal] = min(share, 1.0) if share == share else math.nan
        return found


def stall_seconds(text: str) -> dict[str, float]:
    """`some avg10=… total=5` and `full …` as seconds by kind; lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        total = number(rest.rpartition("total=")[2]) if "total=" in rest else math.nan
        if kind in ("some", "full") and total == total:
            found[kind] = total * _US
    return found


def pressure_files(folder: Path, dotted: bool) -> dict[str, Path]:
    """`cpu.pressure` … of a cgroup (`dotted`), `cpu` … of /proc/pressure."""
    return {r: folder / (f"{r}.pressure" if dotted else r) for r in ("cpu", "memory", "io")}
