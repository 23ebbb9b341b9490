"""Processes by /proc: parents, the pid that a process has within its own namespace, who listens on a port.

Pids are those of the /proc that is read. NVML's are the host's: the two agree only where this /proc is the host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 64
_MOST_PROCESSES = 65_536
_MOST_SOCKETS = 100_000
_LISTENING = "0A"


def is_hosts(proc: Path) -> bool:
    """Whether this /proc shows the host's processes: only there is pid 2 the kernel's thread of threads."""
    try:
        return (proc / "2" / "comm").read_text(errors="replace").strip() == "kthreadd"
    except OSError:
        return False


def status(pid: int, proc: Path) -> dict[str, str]:
    """`/proc/PID/status` by key; empty where it cannot be read."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")[:8192]
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def lineage(pid: int, proc: Path) -> Iterator[int]:
    """The process and its ancestors, without the first process."""
    for _ in range(_DEEPEST):
        if pid <= 1:
            return
        yield pid
        parent = status(pid, proc).get("PPid", "")
        if not parent.isdigit():
            return
        pid = int(parent)


def own_pid(pid: int, proc: Path) -> int:
    """The pid that the process has in its innermost namespace, which is what it says of itself; 0 where unknown."""
    inner = status(pid, proc).get("NSpid", "").split()
    return int(inner[-1]) if inner and inner[-1].isdigit() else 0


def session(pid: int, proc: Path) -> int:
    """The session that the process belongs to: what one shell or service has started; 0 where unknown."""
    try:
        after = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(after[3])
    except (OSError, ValueError, IndexError):
        return 0


def started(pid: int, proc: Path) -> str:
    """When the process was started, in ticks since boot: with the pid, what tells it from a later one. Empty: gone."""
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def maps_file(pid: int, name: str, proc: Path) -> bool | None:
    """Whether the process has mapped a file of this name; None where we may not look."""
    try:
        with (proc / str(pid) / "maps").open(errors="replace") as lines:
            return any(line.rstrip("\n").endswith("/" + name) for line in lines)
    except OSError:
        return None


def listener(port: int, proc: Path) -> int:
    """The process that listens on a TCP port here; 0 where there is none, or it is not ours to see."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    if not sockets:
        return 0
    found = [pid for pid in _pids(proc) if _has_open(pid, sockets, proc)]
    return min((pid for pid in found if status(pid, proc).get("PPid", "") not in map(str, found)), default=0)


def _inodes(port: int, proc: Path) -> Iterator[str]:
    wanted = f"{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            with (proc / "net" / table).open() as lines:
                for line, _ in zip(lines, range(_MOST_SOCKETS), strict=False):
                    parts = line.split()
                    if len(parts) > 9 and parts[3] == _LISTENING and parts[1].rpartition(":")[2] == wanted:
                        yield parts[9]
        except OSError:
            continue


def _pids(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        names = (entry.name for entry, _ in zip(entries, range(_MOST_PROCESSES), strict=False))
        yield from (int(name) for name in names if name.isdigit())


def _has_open(pid: int, sockets: set[str], proc: Path) -> bool:
    try:
        with os.scandir(proc / str(pid) / "fd") as entries:
            return any(_target(entry.path) in sockets for entry in entries)
    except OSError:
        return False  # gone, or another user's


def _target(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
