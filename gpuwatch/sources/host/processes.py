"""What an engine's processes do to the machine: CPU of processes, threads and event loop, waits, memory, descriptors.

Counters are compared per process, so that one that joins or leaves makes no jump. Workers of an engine with several
devices spin at a whole core while they wait; these are readings, not a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from ..growth import Growth
from .family import Family
from .process_files import Stat, open_files, run_wait_s, stat, switches
from .slope import Slope

_MOST_THREADS = 1024

Values = dict[str, float]


class _Counters:
    """One process between two looks: growth per second of what it has used."""

    def __init__(self) -> None:
        self.user, self.system, self.main, self.faults = Growth(), Growth(), Growth(), Growth()
        self.waited, self.voluntary, self.involuntary = Growth(), Growth(), Growth()


class Processes:
    """Readings of a Family under `proc`. `hidden` says what may not be read, and why."""

    def __init__(self, family: Family, proc: Path) -> None:
        self.family = family
        self.hidden: dict[str, str] = {}
        self._proc = proc
        self._counters: dict[int, _Counters] = {}
        self._threads: dict[tuple[int, int], Growth] = {}
        self._slope = Slope()
        self._sloped: frozenset[int] = frozenset()

    def read(self, now: float) -> Values:
        """The cheap part, for each second. Empty where no process is left."""
        members = self.family.look()
        self._counters = {pid: self._counters.get(pid) or _Counters() for pid in members}
        if not members:
            return {}
        seen = {pid: self._one(pid, one, now) for pid, one in members.items()}
        fronts = [seen[pid]["main"] for pid in self.family.fronts if pid in seen]
        user, system = _total(seen, "user"), _total(seen, "system")
        resident = sum(one.resident_bytes for one in members.values())
        return {
            "process_cpu_ratio": _greatest(one["user"] + one["system"] for one in seen.values()),
            "process_cpu_all_ratio": user + system,
            "process_cpu_system_ratio": system / (user + system) if user + system > 0 else math.nan,
            "process_front_cpu_ratio": _greatest(fronts),
            "process_run_wait_ratio": _greatest(min(one["waited"], 1.0) for one in seen.values()),
            "process_switches_voluntary_per_second": _total(seen, "voluntary"),
            "process_switches_involuntary_per_second": _total(seen, "involuntary"),
            "process_major_faults_per_second": _total(seen, "faults"),
            "process_memory_bytes": resident,
            "process_memory_slope_bytes_per_second": self._grows(resident, now),
            "process_threads": float(sum(one.threads for one in members.values())),
            "process_start_seconds": self.family.started_at(),
        }

    def read_slow(self, now: float) -> Values:
        """The costly part: each thread, each descriptor. Raises OSError where the engine's process is gone."""
        self.family.walk()
        return {"process_thread_cpu_ratio": self._busiest_thread(now), **self._descriptors()}

    def _one(self, pid: int, one: Stat, now: float) -> Values:
        folder, grown = self._proc / str(pid), self._counters[pid]
        voluntary, involuntary = switches(folder)
        return {
            "user": grown.user.per_second(one.user_s, now),
            "system": grown.system.per_second(one.system_s, now),
            "main": grown.main.per_second(self._main_cpu_s(pid, one), now) if pid in self.family.fronts else math.nan,
            "faults": grown.faults.per_second(one.major_faults, now),
            "waited": grown.waited.per_second(run_wait_s(folder), now),
            "voluntary": grown.voluntary.per_second(voluntary, now),
            "involuntary": grown.involuntary.per_second(involuntary, now),
        }

    def _main_cpu_s(self, pid: int, one: Stat) -> float:
        if one.threads == 1:
            return one.cpu_s
        try:
            return stat(self._proc / str(pid) / "task" / str(pid)).cpu_s
        except (OSError, ValueError):
            return math.nan

    def _grows(self, resident: float, now: float) -> float:
        pids = frozenset(self.family.members)
        if pids != self._sloped:
            self._slope.clear()
            self._sloped = pids
        return self._slope.add(resident, now)

    def _busiest_thread(self, now: float) -> float:
        known, self._threads = self._threads, {}
        rates: list[float] = []
        for pid in self.family.members:
            for thread in _threads(self._proc / str(pid) / "task"):
                if len(self._threads) >= _MOST_THREADS:
                    return _greatest(rates)
                try:
                    used_s = stat(self._proc / str(pid) / "task" / str(thread)).cpu_s
                except (OSError, ValueError):
                    continue  # it has ended
                growth = self._threads[pid, thread] = known.get((pid, thread)) or Growth()
                rates.append(growth.per_second(used_s, now))
        return _greatest(rates)

    def _descriptors(self) -> Values:
        self.hidden.pop("open files", None)
        counts = []
        for pid in self.family.members:
            try:
                counts.append(open_files(self._proc / str(pid)))
            except PermissionError:
                self.hidden["open files"] = f"/proc/{pid}/fd: permission denied"
            except OSError:
                continue  # it has ended
        if not counts:
            return {}
        return {
            "process_open_files": max(count for count, _ in counts),
            "process_open_files_ratio": _greatest(min(count / limit, 1.0) for count, limit in counts if limit > 0),
        }


def _threads(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except OSError:
        return []  # it has ended, or it is another user's


def _total(seen: dict[int, Values], what: str) -> float:
    known = [one[what] for one in seen.values() if one[what] == one[what]]
    return sum(known) if known else math.nan


def _greatest(values: Iterable[float]) -> float:
    return max((value for value in values if value == value), default=math.nan)
