"""Two sources: the machine, and one engine's processes with their container. Read in a thread, for /proc may block.

Each look has a cheap part, and every ten seconds a costly one, whose readings are a series of their own (`host-slow`).
What cannot be seen is never another's: without the engine's process there is no reading of it, and `unseen` says why.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...model import Batch, Event, Frame, Info, Subject
from .container import Container
from .disks import Disks
from .family import Family
from .kernel_files import NotSeenError, reason
from .machine import Machine
from .place import SEE_ROOT, SHARE_PIDS, find_place
from .process_facts import process_facts
from .processes import Processes
from .world import World

SLOW_EVERY_S = 10.0
FACTS_EVERY_S = 60.0
SOURCE, SLOW_SOURCE = "host", "host-slow"


class HostSource:
    """The machine. `world` says where its files are; `psutil` may be given for tests."""

    role = "host"

    def __init__(self, host: str, hertz: float = 1.0, world: World | None = None, psutil: Any = None) -> None:
        world = world or World()
        self.name = f"host:{host}"
        self.subject = Subject(host=host)
        self.interval_s = 1 / hertz
        disks = Disks(world.proc, world.sys, world.paths)
        library: Any = psutil or importlib.import_module("psutil")
        library.PROCFS_PATH = str(world.proc)  # for all that asks psutil: the same processes everywhere
        self._machine = Machine(library, world.proc, world.network, disks, world.state)
        self._slow_due = -math.inf

    async def poll(self, now: float) -> Batch:
        """Look once, in a thread."""
        return await asyncio.to_thread(self.look, now)

    def look(self, now: float) -> Batch:
        """Look once."""
        frames = [_frame(self.subject, SOURCE, now, self._machine.read(now))]
        events: tuple[Event, ...] = ()
        if now >= self._slow_due:
            self._slow_due = now + SLOW_EVERY_S
            frames.append(_frame(self.subject, SLOW_SOURCE, now, self._machine.read_slow(now)))
            if self._machine.killed:
                events = (Event(self.subject, now, "oom_kill", {"count": str(self._machine.killed)}),)
        return Batch(self.name, self.role, self.subject, now, frames=tuple(f for f in frames if f), events=events)

    async def aclose(self) -> None:
        """Nothing is open."""


class EngineHostSource:
    """One engine's processes and container. `pid` says which process is the engine's, 0 while nobody knows."""

    role = "host"

    def __init__(
        self, host: str, engine: Subject, pid: Callable[[], int], hertz: float = 1.0, world: World | None = None
    ) -> None:
        self.name = f"host:{host}/{engine.engine}"
        self.subject = engine
        self.interval_s = 1 / hertz
        self._world = world or World()
        self._find_pid = pid
        self._pid = 0
        self._processes: Processes | None = None
        self._container: Container | None = None
        self._missing: dict[str, NotSeenError] = {}
        self._facts: dict[str, str] = {}
        self._facts_due = self._slow_due = -math.inf
        self._again_s = 1.0

    @property
    def absent(self) -> str:
        """Why there is nothing to read; empty while processes are followed."""
        missing = self._missing.get("processes")
        return str(missing) if missing else ""

    @property
    def unseen(self) -> tuple[NotSeenError, ...]:
        """What cannot be looked at, why, and what would show it."""
        return tuple(self._missing.values())

    async def poll(self, now: float) -> Batch:
        """Look once, in a thread."""
        return await asyncio.to_thread(self.look, now)

    def look(self, now: float) -> Batch:
        """Look once."""
        slow = now >= self._slow_due
        costly: dict[str, float] = {}
        cut = 0
        if slow:
            self._slow_due = now + SLOW_EVERY_S
            costly = self._look_slow(now)
            self._look_again(now)
            cut = self._processes.family.cut if self._processes else 0
        events = self._kills(now)
        values = self._look(now)
        frames = (_frame(self.subject, SOURCE, now, values), _frame(self.subject, SLOW_SOURCE, now, costly))
        info = self._info(now) if slow and values else ()
        return Batch(
            self.name, self.role, self.subject, now,
            frames=tuple(f for f in frames if f), events=events, info=info, dropped=cut,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is open."""

    def _look(self, now: float) -> dict[str, float]:
        found = self._processes.read(now) if self._processes else {}
        if self._processes and not found:  # all have ended, and whoever is in their cgroup is not the engine
            self._processes = self._container = None
            self._slow_due = -math.inf
        if self._container is not None and self._container.is_there:
            found |= self._container.read(now)
        return found

    def _look_slow(self, now: float) -> dict[str, float]:
        """Find the engine's process and container where they are not known, and read what costs more."""
        self._follow()
        found: dict[str, float] = {}
        if self._processes is not None:
            try:
                found |= self._processes.read_slow(now)
                self._missing.pop("processes", None)
                self._note_hidden(self._processes.hidden)
            except OSError as error:
                self._lost(f"process {self._pid}: {reason(error)}")
        if self._processes is not None and (self._container is None or not self._container.is_there):
            self._find_container()
        if self._container is not None:
            found |= self._container.read_slow()
        return found

    def _look_again(self, now: float) -> None:
        """Soon where nothing was found, and then less often: looking for a process walks through all of them."""
        if self._processes is not None:
            self._again_s = 1.0
            return
        self._slow_due = now + self._again_s
        self._again_s = min(2 * self._again_s, SLOW_EVERY_S)

    def _follow(self) -> None:
        """Take up the process that is the engine's now."""
        try:
            pid = self._find_pid()
        except OSError as error:
            self._lost(f"{self._world.proc}: {reason(error)}")
            return
        if pid == 0:
            self._lost("its process is not known")
        elif pid != self._pid or self._processes is None:
            self._pid = pid
            self._processes = Processes(Family(pid, self._world.proc), self._world.proc)
            self._container = None

    def _lost(self, why: str) -> None:
        cure = f"{SHARE_PIDS}; or name it in [[engines]] pid; on another machine, run an agent there (--role node)"
        self._missing = {"processes": NotSeenError("the engine's processes", why, cure)}
        self._processes = None

    def _find_container(self) -> None:
        try:
            place = find_place(self._pid, self._world.proc, self._world.cgroup_root)
        except NotSeenError as error:
            self._missing["container"] = error
            self._container = None
            return
        self._missing.pop("container", None)
        self._container = Container(place)

    def _note_hidden(self, hidden: Mapping[str, str]) -> None:
        for what in ("open files",):
            if what in hidden:
                self._missing[what] = NotSeenError(f"the engine's {what}", hidden[what], SEE_ROOT.partition(";")[0])
            else:
                self._missing.pop(what, None)

    def _kills(self, now: float) -> tuple[Event, ...]:
        count = self._container.killed() if self._container is not None else 0
        return (Event(self.subject, now, "oom_kill", {"count": str(count)}),) if count else ()

    def _info(self, now: float) -> tuple[Info, ...]:
        """Threads against CPUs, told when they change and each minute."""
        if self._processes is None:
            return ()
        cores = self._container.cores if self._container else math.nan
        facts = process_facts(self._processes.family, self._world.proc, cores)
        if facts == self._facts and now < self._facts_due:
            return ()
        self._facts, self._facts_due = facts, now + FACTS_EVERY_S
        return (Info(self.subject, now, facts),)


def _frame(subject: Subject, source: str, at: float, values: Mapping[str, float]) -> Frame | None:
    known = {name: value for name, value in values.items() if value == value}
    if not known:
        return None
    return Frame(subject, source, tuple(known), np.array([at]), np.array([list(known.values())]))
