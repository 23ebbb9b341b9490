"""What each source says of one engine's devices. A claim without devices says why, which the doctor passes on.

In the order in which they are believed: the configuration, the kubelet, the processes that the driver lists, the engine's
environment, and the pods that an exporter names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ..nvml.processes import GpuProcess, owner
from . import process_tree, visible
from .holder import Holder
from .inventory import Inventory
from .kubelet import Allocation

CONFIG, KUBELET, PROCESSES, ENVIRONMENT, EXPORTER = "config", "kubelet", "processes", "environment", "exporter"
ORDER = (CONFIG, KUBELET, PROCESSES, ENVIRONMENT, EXPORTER)


class Claim(msgspec.Struct, frozen=True):
    """Devices of one engine by one source, or why it names none. `not_on`: devices that it knows to be others'."""

    how: str
    gpus: tuple[str, ...] = ()
    why: str = ""
    not_on: tuple[str, ...] = ()


class EngineClue(msgspec.Struct, frozen=True):
    """What is known of an engine before its devices are.

    `pid` is its process as /proc shows it here, 0 where unknown. `pod` is the pod that it runs in, as far as it is told:
    fields that are empty match anything. `alone`: no other engine is watched in that pod.
    """

    name: str
    gpus: tuple[str, ...] = ()
    pid: int = 0
    pod: Holder | None = None
    alone: bool = True


def by_config(clue: EngineClue, inventory: Inventory) -> Claim:
    """`[[engines]] gpus`: UUIDs, indices, or whatever else names a device. One that is not seen is still claimed."""
    if not clue.gpus:
        return Claim(CONFIG, why="`gpus` is not set")
    return Claim(CONFIG, tuple(dict.fromkeys(inventory.key(name) or name for name in clue.gpus)))


def by_kubelet(clue: EngineClue, inventory: Inventory, allocated: Iterable[Allocation] | None, absent: str) -> Claim:
    """What the kubelet gave to the engine's pod."""
    if allocated is None:
        return Claim(KUBELET, why=absent)
    held = [(one.holder, tuple(inventory.key(name) for name in one.ids)) for one in allocated]
    if any(None in keys for who, keys in held if clue.pod is not None and is_same_pod(clue.pod, who)):
        return Claim(KUBELET, why="the kubelet gave it a device that no source shows")
    return _of_pod(KUBELET, clue, [(who, tuple(key for key in keys if key is not None)) for who, keys in held])


def by_exporter(clue: EngineClue, holders: Mapping[str, tuple[Holder, ...]]) -> Claim:
    """Devices whose page names the engine's pod."""
    return _of_pod(EXPORTER, clue, [(holder, (key,)) for key, held in holders.items() for holder in held])


def by_processes(
    clue: EngineClue, lists: Mapping[str, tuple[GpuProcess, ...]], proc: Path, *, hosts: bool
) -> Claim:  # fmt: skip
    """Devices with a process of the engine's tree, or of its container."""
    if not lists:
        return Claim(PROCESSES, why="no driver lists processes here")
    if not hosts:
        return Claim(
            PROCESSES, why="the driver names pids of the host, whose processes this agent does not see (hostPID)"
        )
    if not clue.pid:
        return Claim(PROCESSES, why="the engine's process is not known (`pid`, a ring, or its port on this host)")
    container = owner(clue.pid, proc).container
    found = [
        key for key, listed in sorted(lists.items()) if any(_is_its(p.pid, clue.pid, container, proc) for p in listed)
    ]
    if found:
        return Claim(PROCESSES, tuple(found))
    others = tuple(key for key, listed in sorted(lists.items()) if listed)
    return Claim(PROCESSES, why=f"process {clue.pid} and its children are on no device", not_on=others)


def by_environment(clue: EngineClue, inventory: Inventory, proc: Path) -> Claim:
    """What the engine's process is shown."""
    if not clue.pid:
        return Claim(ENVIRONMENT, why="the engine's process is not known")
    told = visible.read(clue.pid, proc)
    if told is None:
        return Claim(
            ENVIRONMENT, why=f"the environment of process {clue.pid} may not be read (same user, or SYS_PTRACE)"
        )
    seen = visible.devices(told, inventory)
    return Claim(ENVIRONMENT, seen.gpus, seen.why)


def is_same_pod(ours: Holder, theirs: Holder) -> bool:
    """Whether two descriptions are of one pod: by uid, else by name. What one does not say is no difference."""
    if ours.pod_uid and theirs.pod_uid:
        return ours.pod_uid == theirs.pod_uid
    agree = not ours.namespace or not theirs.namespace or ours.namespace == theirs.namespace
    return bool(ours.pod) and ours.pod == theirs.pod and agree


def _is_its(pid: int, engine: int, container: str, proc: Path) -> bool:
    return engine in process_tree.lineage(pid, proc) or (bool(container) and owner(pid, proc).container == container)


Held = tuple[Holder, tuple[str, ...]]


def _of_pod(how: str, clue: EngineClue, held: Iterable[Held]) -> Claim:
    """What the engine's pod holds; of its container only, where that is told."""
    if clue.pod is None:
        return Claim(how, why="the engine's pod is not known (`pod`, or POD_NAME and POD_NAMESPACE beside it)")
    every = list(held)
    mine = [one for one in every if is_same_pod(clue.pod, one[0])]
    if not mine:
        return Claim(how, why=f"{clue.pod.words} holds no device there", not_on=_keys(every))
    if clue.pod.container:
        mine = [one for one in mine if one[0].container in ("", clue.pod.container)]
        return Claim(how, _keys(mine), "" if mine else f"{clue.pod.words} holds no device there")
    if not clue.alone and len(_keys(mine)) > 1:
        return Claim(how, why=f"several engines are watched in {clue.pod.words}: name the container in `pod`")
    return Claim(how, _keys(mine))


def _keys(held: Iterable[Held]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for _, keys in held for key in keys))
