"""The machine as a whole: CPU, what was stolen from it, run queue, pressure, memory, swap. In a container, the node's.

The cheap part is what psutil tells from three small files, and pressure; the costly part is swap, disks and network.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..growth import Growth
from .disks import Disks, free_bytes
from .kernel_files import number, pairs, read_or_empty
from .network import Network
from .pressure import Pressure, pressure_files

_SWAP_PAGE_BYTES = 4096


class Machine:
    """Readings of the machine whose /proc is `proc`, through `psutil`.

    `killed` counts the processes that were killed for memory between the last two `read_slow`.
    """

    def __init__(self, psutil: Any, proc: Path, network: Path, disks: Disks, state: Path | None = None) -> None:
        self.killed = 0
        self._psutil = psutil
        self._proc = proc
        self._state = state
        self._cpus = psutil.cpu_count() or 1
        self._cpu: tuple[float, float, float, float] | None = None
        self._pressure = Pressure(pressure_files(proc / "pressure", dotted=False), "host_")
        self._network = Network(network)
        self._disks = disks
        self._faults, self._swapped, self._kills = Growth(), Growth(), math.nan

    def read(self, now: float) -> dict[str, float]:
        """The cheap part, for each second."""
        memory = self._psutil.virtual_memory()
        return {
            **self._cpu_shares(),
            "host_memory_used_ratio": 1 - memory.available / memory.total,
            "host_memory_available_bytes": float(memory.available),
            "host_load_ratio": self._psutil.getloadavg()[0] / self._cpus,
            "host_runnable_ratio": self._runnable() / self._cpus,
            **self._pressure.read(now),
        }

    def read_slow(self, now: float) -> dict[str, float]:
        """The costly part."""
        counts = pairs(read_or_empty(self._proc / "vmstat"))
        kills = counts.get("oom_kill", math.nan)
        self.killed = int(kills - self._kills) if kills > self._kills else 0
        self._kills = kills
        swap = self._psutil.swap_memory()
        swapped = (counts.get("pswpin", math.nan) + counts.get("pswpout", math.nan)) * _SWAP_PAGE_BYTES
        return {
            "host_swap_used_bytes": float(swap.used),
            "host_swap_bytes_per_second": self._swapped.per_second(swapped, now),
            "host_major_faults_per_second": self._faults.per_second(counts.get("pgmajfault", math.nan), now),
            "host_state_free_bytes": free_bytes(self._state) if self._state is not None else math.nan,
            **self._disks.read(now),
            **self._network.read(now),
        }

    def _cpu_shares(self) -> dict[str, float]:
        times = self._psutil.cpu_times()
        steal, waiting = getattr(times, "steal", 0.0), getattr(times, "iowait", 0.0)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # in user and nice
        now = total, total - times.idle - waiting, steal, waiting
        last, self._cpu = self._cpu, now
        if last is None or total <= last[0]:
            return {}
        busy, stolen, waited = (
            min(max((b - a) / (total - last[0]), 0.0), 1.0) for a, b in zip(last[1:], now[1:], strict=True)
        )
        return {"host_cpu_ratio": busy, "host_cpu_steal_ratio": stolen, "host_cpu_iowait_ratio": waited}

    def _runnable(self) -> float:
        """Tasks that run or could run at this moment, from `/proc/loadavg` (`3/812`), the agent's own left out."""
        words = read_or_empty(self._proc / "loadavg", 256).split()
        running = number(words[3].partition("/")[0]) if len(words) > 3 else math.nan
        return max(running - 1, 0.0)
