"""Where the machine's files are: its own, or the host's where they are mounted into the agent's container."""

from __future__ import annotations

from pathlib import Path

import msgspec


class World(msgspec.Struct, frozen=True):
    """`cgroup_root`: a mount of the host's /sys/fs/cgroup. `paths`: folders whose disks matter. `state`: the agent's own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup_root: Path | None = None
    paths: tuple[str, ...] = ()
    state: Path | None = None

    @property
    def network(self) -> Path:
        """The network's counters: of the host's first process where another /proc is mounted, else of the agent's namespace."""
        return self.proc / "net" if self.proc == Path("/proc") else self.proc / "1" / "net"
