"""Disks: how busy the busiest is, how long an operation takes, bytes. With paths, only the devices that hold them.

From the kernel's `diskstats`; partitions and loop devices are left out, or their whole disk would count twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .kernel_files import number, read_or_empty

_SECTOR_BYTES = 512
_MS = 1e-3
_MOST_DISKS = 256
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")


class _Disk(NamedTuple):
    operations: float
    moved_bytes: float
    waited_s: float
    busy_s: float


class Disks:
    """Readings of the disks under `proc` since the last look. `paths`: folders whose devices matter; none means all."""

    def __init__(self, proc: Path, sys: Path, paths: Iterable[str] = ()) -> None:
        self._proc = proc
        self._blocks = sys / "block"
        self._numbers = sys / "dev" / "block"
        self._paths = tuple(paths)
        self._last: tuple[float, dict[str, _Disk]] | None = None

    def read(self, now: float) -> dict[str, float]:
        """Busiest disk, longest mean wait, bytes of all of them; empty at the first look."""
        disks = self._disks()
        last, self._last = self._last, (now, disks)
        if last is None or now <= last[0]:
            return {}
        took_s = now - last[0]
        busy, wait, moved = [], [], 0.0
        for name, disk in disks.items():
            before = last[1].get(name)
            if before is None or any(b < a for a, b in zip(before, disk, strict=True)):
                continue
            busy.append(min((disk.busy_s - before.busy_s) / took_s, 1.0))
            moved += disk.moved_bytes - before.moved_bytes
            done = disk.operations - before.operations
            if done > 0:
                wait.append((disk.waited_s - before.waited_s) / done)
        if not busy:
            return {}
        return {
            "host_disk_busy_ratio": max(busy),
            "host_disk_wait_seconds": max(wait, default=math.nan),
            "host_disk_bytes_per_second": moved / took_s,
        }

    def _disks(self) -> dict[str, _Disk]:
        found: dict[str, _Disk] = {}
        numbers: dict[str, str] = {}
        for line in read_or_empty(self._proc / "diskstats").splitlines():
            words = line.split()
            if len(words) < 14 or len(found) >= _MOST_DISKS or not self._is_whole(words[2]):
                continue
            figures = [number(word) for word in words[3:14]]
            if any(figure != figure for figure in figures):
                continue
            reads, _, read_sectors, read_ms, writes, _, written, write_ms, _, busy_ms, _ = figures
            numbers[f"{words[0]}:{words[1]}"] = words[2]
            found[words[2]] = _Disk(
                reads + writes, (read_sectors + written) * _SECTOR_BYTES, (read_ms + write_ms) * _MS, busy_ms * _MS
            )
        if not self._paths:
            return found
        holding = {name for path in self._paths if (name := self._holder(path, numbers))}
        return {name: disk for name, disk in found.items() if name in holding}

    def _is_whole(self, name: str) -> bool:
        if name.startswith(_NOT_DISKS):
            return False
        return not self._blocks.is_dir() or (self._blocks / name.replace("/", "!")).exists()

    def _holder(self, path: str, numbers: dict[str, str]) -> str:
        """The whole disk that holds a path; empty for a network or memory file system."""
        try:
            device = Path(path).stat().st_dev
        except OSError:
            return ""
        key = f"{os.major(device)}:{os.minor(device)}"
        if key in numbers:
            return numbers[key]
        try:  # a partition lies in its disk's folder
            return (self._numbers / key).resolve(strict=True).parent.name
        except OSError:
            return ""


def free_bytes(path: Path) -> float:
    """Bytes that may still be written to the file system of `path`; NaN where it cannot be asked."""
    try:
        about = os.statvfs(path)
    except OSError:
        return math.nan
    return float(about.f_bavail * about.f_frsize)
