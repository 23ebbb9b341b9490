"""What /proc says of one process, read directly: a tenth of what a library asks for, at a tenth of its price.

Context switches, run-queue wait and the main thread's CPU are those of the process's first thread, which holds the event
loop of a front end and the step loop of an engine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .kernel_files import number, read, read_or_empty

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_PROCESSES = 100_000


class Stat(NamedTuple):
    """/proc/PID/stat (or of one thread). `started_s`: after the machine's start; `name` is cut at 15 characters."""

    name: str
    parent: int
    session: int
    major_faults: float
    user_s: float
    system_s: float
    threads: int
    started_s: float
    resident_bytes: float

    @property
    def cpu_s(self) -> float:
        """CPU time, all threads."""
        return self.user_s + self.system_s


def stat(folder: Path) -> Stat:
    """Raises OSError where the process is gone, ValueError where the line is none."""
    text = read(folder / "stat", 4096)
    before, _, after = text.rpartition(")")  # a name may hold anything
    words = after.split()
    try:
        return Stat(
            before.partition("(")[2], int(words[1]), int(words[3]), float(words[9]), int(words[11]) * _TICK_S,
            int(words[12]) * _TICK_S, int(words[17]), int(words[19]) * _TICK_S, int(words[21]) * _PAGE_BYTES,
        )  # fmt: skip
    except (IndexError, ValueError) as error:
        raise ValueError(f"{folder}/stat: not a process") from error


def switches(folder: Path) -> tuple[float, float]:
    """Voluntary and involuntary context switches of the first thread; NaN where not told."""
    found = dict.fromkeys(("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"), math.nan)
    for line in read_or_empty(folder / "status", 16384).splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = number(value)
    return found["voluntary_ctxt_switches"], found["nonvoluntary_ctxt_switches"]


def run_wait_s(folder: Path) -> float:
    """How long the first thread has waited for a CPU; NaN on a kernel that does not say."""
    words = read_or_empty(folder / "schedstat", 256).split()
    return number(words[1]) * 1e-9 if len(words) >= 2 else math.nan


def allowed_cpus(folder: Path) -> float:
    """How many CPUs the process may run on; NaN where not told."""
    for line in read_or_empty(folder / "status", 16384).splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _listed(line.partition(":")[2].strip())
    return math.nan


def open_files(folder: Path) -> tuple[float, float]:
    """Open descriptors and how many there may be. Raises OSError where the process is another user's."""
    count = float(sum(1 for _ in (folder / "fd").iterdir()))
    for line in read_or_empty(folder / "limits", 16384).splitlines():
        if line.startswith("Max open files"):
            return count, number(line.split()[3].replace("unlimited", "max"))
    return count, math.nan


def parents(proc: Path) -> dict[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for pid in process_ids(proc):
        try:
            found[pid] = stat(proc / str(pid)).parent
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return found


def process_ids(proc: Path) -> Iterator[int]:
    """Every process. Raises OSError where there is no such folder."""
    with os.scandir(proc) as entries:
        for entry, _ in zip((e for e in entries if e.name.isdigit()), range(_MOST_PROCESSES), strict=False):
            yield int(entry.name)


def own_line(proc: Path) -> frozenset[int]:
    """The agent itself and all above it: none of them is an engine's process."""
    try:
        pid = int(str((proc / "self").readlink()))
    except (OSError, ValueError):
        return frozenset()
    line: list[int] = []
    while pid > 0 and pid not in line and len(line) < 64:
        line.append(pid)
        try:
            pid = stat(proc / str(pid)).parent
        except (OSError, ValueError):
            break
    return frozenset(line)


def boot_at(proc: Path) -> float:
    """Unix time at which the machine started; NaN where not told."""
    for line in read_or_empty(proc / "stat").splitlines():
        if line.startswith("btime "):
            return number(line[6:])
    return math.nan


def _listed(text: str) -> float:
    """`0-3,8` is 5."""
    count = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return math.nan
        count += int(last) - int(first) + 1 if dash else 1
    return float(count)
