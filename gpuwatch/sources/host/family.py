"""All processes of one engine: the front end, its engine cores, schedulers and workers, whichever of them was named.

From the named process the tree is followed up while the parent runs the same program in the same session, and down to
all descendants. The agent and what is above it are never part of it. A process is known by pid and start, so that a pid
that is given out again is another process.
"""

from __future__ import annotations

import math
from pathlib import Path

from .process_files import Stat, boot_at, own_line, parents, stat

MOST_PROCESSES = 64
_HIGHEST = 8
_FRONT_TITLES = ("apiserver", "api_server", "frontend", "tokenizer_mana", "http_server")
"""What engines call the processes that hold the HTTP event loop, in lower case (titles are cut at 15 characters)."""


class Family:
    """The processes of the engine that `pid` belongs to. `pids` is renewed by `walk`, first process first."""

    def __init__(self, pid: int, proc: Path) -> None:
        self.pid = pid
        self.cut = 0
        self.members: dict[int, Stat] = {}
        self._proc = proc
        self._boot_at = boot_at(proc)

    @property
    def first(self) -> int:
        """The process above all others; 0 where there is none."""
        return next(iter(self.members), 0)

    @property
    def fronts(self) -> tuple[int, ...]:
        """Processes that hold an HTTP event loop: those that say so by name, otherwise the first."""
        named = [pid for pid, one in self.members.items() if any(t in one.name.lower() for t in _FRONT_TITLES)]
        return tuple(named) or ((self.first,) if self.members else ())

    def started_at(self) -> float:
        """Unix time at which the first process started; NaN without any."""
        return self._boot_at + self.members[self.first].started_s if self.members else math.nan

    def walk(self) -> None:
        """Look who is there. Raises OSError where the named process is gone."""
        mine = own_line(self._proc)
        named = self._stat(self.pid)
        if named is None or self.pid in mine:
            self.members = {}
            raise ProcessLookupError(f"no process {self.pid} of an engine")
        children: dict[int, list[int]] = {}
        for pid, parent in parents(self._proc).items():
            children.setdefault(parent, []).append(pid)
        found: dict[int, Stat] = {}
        line = [self._highest(named, mine)]
        while line and len(found) < MOST_PROCESSES:
            pid = line.pop(0)
            one = self._stat(pid)
            if one is None or pid in found or pid in mine:
                continue
            found[pid] = one
            line += sorted(children.get(pid, ()))
        self.cut = len(line)
        self.members = found

    def look(self) -> dict[int, Stat]:
        """The members as they are now; those that have ended are forgotten."""
        for pid, before in list(self.members.items()):
            now = self._stat(pid)
            if now is None or now.started_s != before.started_s:
                del self.members[pid]
            else:
                self.members[pid] = now
        return self.members

    def _highest(self, named: Stat, mine: frozenset[int]) -> int:
        """The parent of the parents that is the same program."""
        top, one, program = self.pid, named, self._program(self.pid)
        for _ in range(_HIGHEST):
            above = self._stat(one.parent)
            if (
                above is None
                or not program
                or one.parent in mine
                or above.session != named.session
                or self._program(one.parent) != program
            ):
                break
            top, one = one.parent, above
        return top

    def _program(self, pid: int) -> str:
        """What it runs; empty where it is another user's."""
        try:
            return str((self._proc / str(pid) / "exe").readlink())
        except OSError:
            return ""

    def _stat(self, pid: int) -> Stat | None:
        try:
            return stat(self._proc / str(pid)) if pid > 0 else None
        except (OSError, ValueError):
            return None
