"""The container of an engine: CPU quota and throttling, memory and its limit, out-of-memory kills, pressure.

Reads the cgroup that holds the engine's process, and those above it up to where they can be seen: a limit may sit on any
of them, and the tightest one counts. Version 1 counts throttled time in nanoseconds, version 2 in microseconds. A counter
that falls (a new container under the same path) makes one look unknown, never a negative rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..growth import Growth
from .kernel_files import number, pairs, read_or_empty
from .place import Place
from .pressure import Pressure, pressure_files

_UNLIMITED_BYTES = 2.0**60  # version 1 writes its largest page-aligned number
_POD = re.compile(r"(?:^|-)pod[0-9a-f]{8}[-_0-9a-f]*(?:\.slice)?$")


class Quota(msgspec.Struct, frozen=True):
    """A CPU limit: `cores` may be used at once, set on `folder`."""

    folder: Path
    cores: float


class Throttling:
    """Throttled periods ÷ periods, and throttled seconds per second, of one cgroup between two looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[float, float] | None = None
        self._held = Growth()

    def read(self, now: float) -> tuple[float, float]:
        """Share of periods, and held-back run queues. NaN at the first look, without periods, or unreadable."""
        stat = pairs(read_or_empty(self.folder / "cpu.stat"))
        seconds = stat.get("throttled_usec", math.nan) * 1e-6
        if seconds != seconds:
            seconds = stat.get("throttled_time", math.nan) * 1e-9
        return self._share(stat.get("nr_periods"), stat.get("nr_throttled")), self._held.per_second(seconds, now)

    def _share(self, periods: float | None, throttled: float | None) -> float:
        last = self._last
        self._last = None if periods is None or throttled is None else (periods, throttled)
        if last is None or self._last is None:
            return math.nan
        passed, held = self._last[0] - last[0], self._last[1] - last[1]
        return held / passed if passed > 0 and 0 <= held <= passed else math.nan


class Container:
    """One engine's cgroup. `read` is cheap; `read_slow` looks at limits and at what the memory holds."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.quotas: tuple[Quota, ...] = ()
        self.limits_known = False
        self._throttling: tuple[Throttling, ...] = ()
        self._used = Growth()
        own = place.of("pressure")[:1]
        self._pressure = Pressure(pressure_files(own[0], dotted=True) if own else {}, "cgroup_")
        self._memory_at: Path | None = next(iter(place.of("memory")), None)
        self._killed: dict[Path, float] = {}
        self._reclaims = math.nan

    @property
    def is_there(self) -> bool:
        """False once the kernel has removed it: the container has ended."""
        folders = self.place.of("cpu") or self.place.of("memory")
        return bool(folders) and folders[0].exists()

    @property
    def cores(self) -> float:
        """CPUs that may be used at once: the tightest quota; infinite without one, NaN before it is known."""
        if not self.limits_known:
            return math.nan
        return min((quota.cores for quota in self.quotas), default=math.inf)

    def read(self, now: float) -> dict[str, float]:
        """CPU, memory and pressure now."""
        seen = [throttling.read(now) for throttling in self._throttling]
        values = {
            "cgroup_cpu_ratio": self._used.per_second(self._cpu_seconds(), now),
            "cgroup_memory_bytes": self._memory("memory.current", "memory.usage_in_bytes"),
            "cgroup_memory_high_total": self._reclaims,
            **self._pressure.read(now),
        }
        if seen:
            values["cgroup_cpu_throttled_ratio"] = _greatest(share for share, _ in seen)
            values["cgroup_cpu_held_ratio"] = _greatest(held for _, held in seen)
        elif self.limits_known:
            values["cgroup_cpu_throttled_ratio"] = 0.0  # no quota can be seen: nothing is held back
        return values

    def read_slow(self) -> dict[str, float]:
        """Limits as they are now, and what the memory holds."""
        self._find_quotas()
        values = {"cgroup_cpu_limit_ratio": self.cores if math.isfinite(self.cores) else math.nan}
        limits = [(_memory_limit(folder), folder) for folder in self.place.of("memory")]
        limit, folder = min(limits, default=(math.inf, None), key=lambda pair: pair[0])
        if math.isfinite(limit):
            values["cgroup_memory_limit_bytes"], self._memory_at = limit, folder
        high = min((_figure(f / "memory.high", math.inf) for f in self.place.of("memory")), default=math.inf)
        if math.isfinite(high):
            values["cgroup_memory_high_bytes"] = high
        if self._memory_at is not None:
            stat = pairs(read_or_empty(self._memory_at / "memory.stat"))
            values["cgroup_memory_anon_bytes"] = _first(stat, "anon", "total_rss", "rss")
            values["cgroup_memory_file_bytes"] = _first(stat, "file", "total_cache", "cache")
        return values

    def killed(self) -> int:
        """Processes that the kernel has killed for memory since the last call: in the container, or in its pod."""
        folders = self.place.of("memory")
        watched = [f for n, f in enumerate(folders) if n == 0 or f == self._memory_at or _POD.search(f.name)]
        most = 0.0
        for folder in watched:
            counts = pairs(read_or_empty(folder / "memory.events")) or pairs(
                read_or_empty(folder / "memory.oom_control")
            )
            if folder == self._memory_at:
                self._reclaims = counts.get("high", math.nan)
            count = counts.get("oom_kill")
            if count is not None:
                most = max(most, count - self._killed.get(folder, count))
                self._killed[folder] = count
        return int(most)

    def _find_quotas(self) -> None:
        folders = self.place.of("cpu")
        found = [(folder, _cores(folder)) for folder in folders]
        self.limits_known = any(cores == cores for _, cores in found)
        self.quotas = tuple(Quota(folder, cores) for folder, cores in found if math.isfinite(cores))
        if [q.folder for q in self.quotas] != [t.folder for t in self._throttling]:
            known = {throttling.folder: throttling for throttling in self._throttling}
            self._throttling = tuple(known.get(q.folder) or Throttling(q.folder) for q in self.quotas)

    def _cpu_seconds(self) -> float:
        for folder in self.place.of("cpuacct")[:1]:
            if self.place.version == 1:
                return _figure(folder / "cpuacct.usage", math.nan) * 1e-9
            return pairs(read_or_empty(folder / "cpu.stat")).get("usage_usec", math.nan) * 1e-6
        return math.nan

    def _memory(self, second: str, first: str) -> float:
        """A figure under its name in version 2 or 1."""
        if self._memory_at is None:
            return math.nan
        return _figure(self._memory_at / (second if self.place.version == 2 else first), math.nan)


def _cores(folder: Path) -> float:
    """The quota of one cgroup in cores; infinite without one, NaN where it has no such file."""
    quota, _, period = read_or_empty(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (read_or_empty(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if quota in ("max", "-1"):
        return math.inf
    budget, length = number(quota), number(period)
    return budget / length if budget > 0 and length > 0 else math.nan


def _memory_limit(folder: Path) -> float:
    limit = _figure(folder / "memory.max", math.nan)
    if limit != limit:
        limit = _figure(folder / "memory.limit_in_bytes", math.inf)
    return limit if limit < _UNLIMITED_BYTES else math.inf


def _figure(path: Path, otherwise: float) -> float:
    figure = number(read_or_empty(path, 64))
    return figure if figure == figure else otherwise


def _first(stat: dict[str, float], *names: str) -> float:
    return next((stat[name] for name in names if name in stat), math.nan)


def _greatest(values: Iterator[float]) -> float:
    return max((value for value in values if value == value), default=math.nan)
