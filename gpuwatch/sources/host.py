"""The host and the engine's processes through psutil: CPU, memory, load, throttling. At most a few milliseconds a look.

In a container, host totals are the node's. The process tree is walked every ten seconds only: walking it costs more
than all the rest.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..model import Batch, Frame, Subject
from .cgroup import CpuThrottling
from .poll import Clock

SOURCE = "host"
_TREE_EVERY_S = 10.0
_MAX_PROCESSES = 64


class HostSource:
    """One host, and the process tree of one engine where `pid` is given. `root` and `system` (psutil) are the world."""

    role = "host"

    def __init__(
        self,
        host: str,
        clock: Clock,
        engine: Subject | None = None,
        pid: int = 0,
        hertz: float = 1.0,
        root: Path = Path("/"),
        system: Any = None,
    ) -> None:
        self.name = f"host:{host}" + (f"/{engine.engine}" if engine else "")
        self.subject = Subject(host=host)
        self.interval_s = 1 / hertz
        self._clock = clock
        self._psutil = system or importlib.import_module("psutil")
        self._engine = engine
        self._pid = pid
        self._busy: tuple[float, float] | None = None
        self._tree: dict[int, tuple[Any, float, float]] = {}  # pid → (process, CPU seconds, at)
        self._tree_due = -math.inf
        root_of_engine = root / "proc" / str(pid) / "root" if pid else root
        self._throttling = CpuThrottling(root_of_engine)

    def watch(self, pid: int) -> None:
        """Follow another process from now on: the engine has been restarted, or its ring has named its pid."""
        if pid != self._pid:
            self._pid, self._tree, self._tree_due = pid, {}, -math.inf
            self._throttling = CpuThrottling(Path("/proc") / str(pid) / "root" if pid else Path("/"))

    async def poll(self, now: float) -> Batch:
        """Look once, in a thread: reading /proc may block."""
        return await asyncio.to_thread(self.look, now)

    def look(self, now: float) -> Batch:
        """Look once."""
        frames = [_frame(self.subject, now, self._host())]
        if self._engine is not None and self._pid:
            frames.append(_frame(self._engine, now, self._processes(now)))
        found = tuple(frame for frame in frames if frame is not None)
        return Batch(self.name, self.role, self.subject, now, frames=found)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _host(self) -> dict[str, float]:
        psutil = self._psutil
        times = psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # counted in user, nice
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        last, self._busy = self._busy, (busy, total)
        memory = psutil.virtual_memory()
        values = {
            "host_memory_used_ratio": 1 - memory.available / memory.total,
            "host_load_ratio": psutil.getloadavg()[0] / (psutil.cpu_count() or 1),
        }
        if last is not None and total > last[1]:
            values["host_cpu_ratio"] = min(max((busy - last[0]) / (total - last[1]), 0.0), 1.0)
        if self._engine is None:
            values["cgroup_cpu_throttled_ratio"] = self._throttling.ratio()
        return values

    def _processes(self, now: float) -> dict[str, float]:
        """The busiest process in cores, resident memory of all, start of the first, throttling of their cgroup."""
        self._walk(now)
        cores, resident, started = [], 0.0, math.nan
        for pid, (process, cpu_s, at) in list(self._tree.items()):
            try:
                with process.oneshot():
                    times, rss = process.cpu_times(), process.memory_info().rss
                    if pid == self._pid:
                        started = process.create_time()
            except self._psutil.Error:
                del self._tree[pid]  # it has ended
                continue
            used_s = times.user + times.system
            self._tree[pid] = (process, used_s, now)
            resident += rss
            if now > at:
                cores.append(max(used_s - cpu_s, 0.0) / (now - at))
        if not self._tree:
            return {}
        return {
            "process_cpu_ratio": max(cores, default=math.nan),
            "process_memory_bytes": resident,
            "process_start_seconds": started,
            "cgroup_cpu_throttled_ratio": self._throttling.ratio(),
        }

    def _walk(self, now: float) -> None:
        if now < self._tree_due:
            return
        self._tree_due = now + _TREE_EVERY_S
        try:
            first = self._psutil.Process(self._pid)
            family = [first, *first.children(recursive=True)][:_MAX_PROCESSES]
        except self._psutil.Error:
            self._tree = {}
            return
        self._tree = {p.pid: self._tree.get(p.pid) or (p, _cpu_s(p, self._psutil), now) for p in family}


def _cpu_s(process: Any, psutil: Any) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _frame(subject: Subject, at: float, values: dict[str, float]) -> Frame | None:
    known = {name: value for name, value in values.items() if value == value}
    if not known:
        return None
    return Frame(subject, SOURCE, tuple(known), np.array([at]), np.array([list(known.values())]))
