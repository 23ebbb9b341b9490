"""Where an engine's process is, and which pod it runs in: what the other evidence is tied to."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from ....config import EngineTarget
from . import process_tree
from .holder import Holder


class Pid(msgspec.Struct, frozen=True):
    """A process id with who told it. The configuration's is as this machine shows it; a ring's is the engine's own.

    `ring` is the name of the ring file that the engine has mapped.
    """

    pid: int = 0
    told_by: Literal["", "config", "ring"] = ""
    ring: str = ""


def own_pod(environ: Mapping[str, str]) -> Holder | None:
    """The pod that the agent runs in, by the downward API: POD_NAME, POD_NAMESPACE, POD_UID."""
    found = Holder(environ.get("POD_NAMESPACE", ""), environ.get("POD_NAME", ""), pod_uid=environ.get("POD_UID", ""))
    return found if found.pod or found.pod_uid else None


def pod_of(target: EngineTarget, own: Holder | None) -> Holder | None:
    """The pod of an engine: as configured, by its spans' attributes, or the agent's own for an engine on the loopback."""
    if target.pod:
        namespace, _, rest = target.pod.partition("/")
        pod, _, container = rest.partition("/")
        return Holder(namespace, pod, container)
    if target.spans.get("k8s.pod.name"):
        told = target.spans
        return Holder(told.get("k8s.namespace.name", ""), told["k8s.pod.name"], told.get("k8s.container.name", ""))
    return own if is_local(target) else None


def is_local(target: EngineTarget) -> bool:
    """Whether the engine answers on this machine's (or this pod's) own addresses."""
    host = urlsplit(target.url).hostname if target.url else "localhost"
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def find_process(told: Pid, target: EngineTarget, listed: Iterable[int], proc: Path) -> int:
    """The engine's process as this /proc shows it; 0 where that is not sure. `listed` are the pids on devices.

    A ring's pid is the one in the engine's own namespace, and may be somebody else's here: it counts only for a process
    that has mapped the ring, or, where that may not be looked at, for the one process on a device that calls itself so.
    """
    if told.told_by == "config":
        return told.pid
    if told.pid:
        above = {pid for one in listed for pid in process_tree.lineage(one, proc)}
        candidates = {pid for pid in {told.pid, *above} if process_tree.own_pid(pid, proc) == told.pid}
        mapped = {pid: process_tree.maps_file(pid, told.ring, proc) for pid in candidates}
        sure = [pid for pid, has in mapped.items() if has]
        likely = sure or [pid for pid, has in mapped.items() if has is None and pid in above]
        if len(likely) == 1:
            return likely[0]
    if target.url and is_local(target):
        port = urlsplit(target.url).port
        return process_tree.listener(port, proc) if port else 0
    return 0
