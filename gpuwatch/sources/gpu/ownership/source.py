"""The source: asks everybody who may know, a few times a minute, and tells the map as facts of each device.

The map is told when it changes and once a minute, so that every part of a recording holds it. What cannot be found out
is not guessed: an engine without a claim has no devices, and rules that need some are blind.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ....config import EngineTarget
from ....model import Batch, Info, Subject
from ...poll import Clock
from .. import device_map
from ..nvml.processes import GpuProcess, owner
from . import claims, process_tree
from .clues import Pid, find_process, pod_of
from .holder import Holder
from .inventory import Inventory
from .kubelet import Allocation, Kubelet, KubeletError
from .mapping import DeviceMap, decide, put_together, running_holders

EVERY_S = 5.0
FIRST_EVERY_S = 1.0
"""Until a device has been seen."""
KUBELET_EVERY_S = 30.0
TOLD_EVERY_S = 60.0
SEARCH_EVERY_S = 30.0
"""How often an engine's process is looked for that was not found."""
ROLE = "ownership"


class DeviceBook(Protocol):
    """A source of devices, as far as it matters here."""

    def devices(self) -> Mapping[str, Mapping[str, str]]: ...  # noqa: D102


class World(msgspec.Struct, frozen=True):
    """Where evidence comes from. `books` know devices, `lists` the processes on them, `pages` the pods.

    `pids`: engine → process; without `looks_at_processes` none is looked for or looked at. `own` is the pod that the
    agent itself runs in.
    """

    books: Sequence[DeviceBook] = ()
    lists: Callable[[], Mapping[str, tuple[GpuProcess, ...]]] = dict
    pages: Callable[[], Mapping[str, tuple[Holder, ...]]] = dict
    pids: Callable[[], Mapping[str, Pid]] = dict
    looks_at_processes: bool = True
    own: Holder | None = None
    proc: Path = Path("/proc")
    kubelet: Kubelet | None = None


class _Known(msgspec.Struct, frozen=True):
    """A process that was looked for, by what."""

    told: Pid
    listed: tuple[int, ...]
    pid: int
    started: str
    at: float


class OwnershipSource:
    """Maps devices to `engines`. `map` is what it found last."""

    name = "ownership"
    role = ROLE

    def __init__(self, engines: Sequence[EngineTarget], world: World, clock: Clock, host: str) -> None:
        self.subject = Subject(host=host)
        self.interval_s = FIRST_EVERY_S
        self.map = DeviceMap()
        self.hosts_proc = False
        self.kubelet_says = "not asked yet"
        self._engines = tuple(engines)
        self._world = world
        self._clock = clock
        self._allocated: tuple[Allocation, ...] | None = None
        self._asked_at = -math.inf
        self._asked_for: Mapping[str, Pid] = {}
        self._told: dict[str, dict[str, str]] = {}
        self._told_at = -math.inf
        self._processes: dict[str, _Known] = {}

    async def poll(self, now: float) -> Batch:
        """Look at everything once; /proc and the kubelet are not waited for in the agent's own thread."""
        pids = dict(self._world.pids())
        await self._ask_kubelet(now, pids)
        self.map = await asyncio.to_thread(self.look, pids)
        self.interval_s = EVERY_S if self.map.devices else FIRST_EVERY_S
        at = self._clock.now()
        return Batch(self.name, self.role, self.subject, at, info=self._tell(at))

    async def aclose(self) -> None:
        """Nothing is open."""

    def look(self, pids: Mapping[str, Pid]) -> DeviceMap:
        """The map as of now. Reads /proc."""
        world, proc = self._world, self._world.proc
        inventory = Inventory(self._devices())
        lists, pages = dict(world.lists()), dict(world.pages())
        self.hosts_proc = world.looks_at_processes and process_tree.is_hosts(proc)
        listed = sorted({p.pid for held in lists.values() for p in held}) if self.hosts_proc else []
        pods = {target.name: pod_of(target, world.own) for target in self._engines}
        mapped = []
        members: dict[int, str] = {}
        for target in self._engines:
            pid = self._process(target, pids.get(target.name, Pid()), listed) if world.looks_at_processes else 0
            pod = pods[target.name] or _pod_by_process(pid, proc)
            alone = sum(1 for other in pods.values() if other is not None and other == pods[target.name]) <= 1
            clue = claims.EngineClue(target.name, target.gpus, pid, pod, alone)
            mapped.append(decide(target.name, self._claims(clue, inventory, lists, pages)))
            if pid:
                members |= {p: f"engine {target.name}" for p in listed if pid in process_tree.lineage(p, proc)}
        running, mps = self._running(lists, listed, members)
        return put_together(inventory.devices, mapped, self._named(inventory, pages), running, mps)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _process(self, target: EngineTarget, told: Pid, listed: Sequence[int]) -> int:
        """The engine's process, remembered while it lives: looking for one may be a walk through all of /proc."""
        proc, now = self._world.proc, self._clock.now()
        known = self._processes.get(target.name)
        if known is not None and known.told == told and known.listed == tuple(listed):
            alive = bool(known.pid) and process_tree.started(known.pid, proc) == known.started
            if alive or (not known.pid and now - known.at < SEARCH_EVERY_S):
                return known.pid
        pid = find_process(told, target, listed, proc)
        started = process_tree.started(pid, proc) if pid else ""
        self._processes[target.name] = _Known(told, tuple(listed), pid, started, now)
        return pid

    def _devices(self) -> dict[str, dict[str, str]]:
        """Facts by device; of several sources that know one, the first says most."""
        found: dict[str, dict[str, str]] = {}
        for book in self._world.books:
            for key, facts in book.devices().items():
                found[key] = {**facts, **found.get(key, {})}
        return found

    def _claims(
        self, clue: claims.EngineClue, inventory: Inventory, lists: Mapping[str, tuple[GpuProcess, ...]],
        pages: Mapping[str, tuple[Holder, ...]],
    ) -> list[claims.Claim]:  # fmt: skip
        proc = self._world.proc
        return [
            claims.by_config(clue, inventory),
            claims.by_kubelet(clue, inventory, self._allocated, self.kubelet_says),
            claims.by_processes(clue, lists, proc, hosts=self.hosts_proc),
            claims.by_environment(clue, inventory, proc),
            claims.by_exporter(clue, pages),
        ]

    def _named(self, inventory: Inventory, pages: Mapping[str, tuple[Holder, ...]]) -> dict[str, tuple[Holder, ...]]:
        """Holders by name: the kubelet's, and an exporter's for devices of which the kubelet says nothing."""
        found: dict[str, list[Holder]] = {}
        for one in self._allocated or ():
            for key in {inventory.key(name) for name in one.ids} - {None}:
                found.setdefault(str(key), []).append(one.holder)
        return {key: held for key, held in pages.items() if held} | {key: tuple(held) for key, held in found.items()}

    def _running(
        self, lists: Mapping[str, tuple[GpuProcess, ...]], listed: Sequence[int], members: Mapping[int, str]
    ) -> tuple[dict[str, tuple[Holder, ...]], frozenset[str]]:
        proc = self._world.proc
        who = {pid: owner(pid, proc) for pid in listed}
        group = {pid: members.get(pid) or f"session {process_tree.session(pid, proc)}" for pid in listed}
        running: dict[str, tuple[Holder, ...]] = {}
        served: set[str] = set()
        for key, held in lists.items() if self.hosts_proc else ():
            running[key], mps = running_holders(held, who, group)
            if mps:
                served.add(key)
        return running, frozenset(served)

    async def _ask_kubelet(self, now: float, pids: Mapping[str, Pid]) -> None:
        """Ask it twice a minute, and at once when an engine's process is another."""
        kubelet = self._world.kubelet
        if kubelet is None:
            self.kubelet_says = "the kubelet is not asked in this role"
            return
        if now - self._asked_at < KUBELET_EVERY_S and pids == self._asked_for:
            return
        self._asked_at, self._asked_for = now, pids
        self.kubelet_says = kubelet.absent
        if self.kubelet_says:
            self._allocated = None
            return
        try:
            self._allocated = await kubelet.list()
        except KubeletError as error:
            self._allocated, self.kubelet_says = None, str(error)

    def _tell(self, at: float) -> tuple[Info, ...]:
        """The map as facts: all of it once a minute, otherwise what has changed."""
        everything = at - self._told_at >= TOLD_EVERY_S
        if everything:
            self._told_at = at
        info: list[Info] = []
        for key in [*self.map.devices, *(gone for gone in self._told if gone not in self.map.devices)]:
            use = self.map.devices.get(key)
            slots = sum(1 for label in self._told.get(key, ()) if label.endswith(".from"))
            engines, sharing, known = (use.engines, use.sharing, use.is_known) if use else ((), "", False)
            said = device_map.labels(engines, sharing, known=known, slots=slots)
            if use is not None:
                said["held_by"] = ", ".join(holder.words for holder in use.holders)[:250]
            if everything or self._told.get(key) != said:
                info.append(Info(Subject(gpu=key), at, said))
            if use is None:
                self._told.pop(key, None)
            else:
                self._told[key] = said
        return tuple(info)


def _pod_by_process(pid: int, proc: Path) -> Holder | None:
    told = owner(pid, proc) if pid else None
    return Holder(pod_uid=told.pod_uid) if told is not None and told.pod_uid else None
