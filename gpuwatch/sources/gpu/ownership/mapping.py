"""Puts claims together: which devices serve which engine, who else is on them, and what is not known.

A device is *known* when it is known of every watched engine whether it runs there. It is *shared* when it has several
holders: then its activity is that of all, and one engine's part of it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..nvml.processes import GpuProcess, Owner
from .claims import ORDER, Claim
from .holder import Holder

SERVER = "nvidia-cuda-mps"
"""What the process of CUDA's multi-process service is called: a holder of nothing."""


class EngineDevices(msgspec.Struct, frozen=True):
    """An engine's devices. `how` names who said so; empty: nobody knows. `claims` are what each said."""

    engine: str
    gpus: tuple[str, ...]
    how: str
    claims: tuple[Claim, ...]

    @property
    def not_on(self) -> frozenset[str]:
        """Devices on which it is known not to run, whatever else is not known of it."""
        return frozenset(key for claim in self.claims for key in claim.not_on)

    @property
    def contradiction(self) -> str:
        """A source that knows the device's processes and says otherwise; empty where none does."""
        for claim in self.claims:
            if claim.how != self.how and claim.gpus and not set(claim.gpus) & set(self.gpus):
                return f"{claim.how} says {', '.join(claim.gpus)}"
        return ""


class DeviceUse(msgspec.Struct, frozen=True):
    """Who uses a device: watched engines with who said so, holders by name, and how it is shared (empty: it is not)."""

    engines: tuple[tuple[str, str], ...] = ()
    holders: tuple[Holder, ...] = ()
    sharing: str = ""
    is_known: bool = False


class DeviceMap(msgspec.Struct, frozen=True):
    """The whole map."""

    engines: dict[str, EngineDevices] = {}
    devices: dict[str, DeviceUse] = {}


def decide(engine: str, claims: Iterable[Claim]) -> EngineDevices:
    """The first claim in the order of trust that names devices."""
    told = tuple(sorted(claims, key=lambda claim: ORDER.index(claim.how)))
    best = next((claim for claim in told if claim.gpus), None)
    return EngineDevices(engine, best.gpus if best else (), best.how if best else "", told)


def put_together(
    devices: Iterable[str],
    engines: Iterable[EngineDevices],
    named: Mapping[str, tuple[Holder, ...]],
    running: Mapping[str, tuple[Holder, ...]],
    mps: frozenset[str] = frozenset(),
) -> DeviceMap:
    """The map. `named` are holders by kubelet or exporter, `running` those of the processes on each device."""
    mapped = {one.engine: one for one in engines}
    uses: dict[str, DeviceUse] = {}
    for key in devices:
        mine = tuple((one.engine, one.how) for one in mapped.values() if key in one.gpus)
        by_name, by_process = named.get(key, ()), running.get(key, ())
        holders = by_name or by_process
        count = max(len(by_name), len(by_process), len(mine))
        known = bool(mine) or (bool(mapped) and all(one.gpus or key in one.not_on for one in mapped.values()))
        uses[key] = DeviceUse(mine, holders, _sharing(by_name, count, key in mps), known)
    return DeviceMap(mapped, uses)


def running_holders(
    processes: Iterable[GpuProcess], who: Mapping[int, Owner], group: Mapping[int, str]
) -> tuple[tuple[Holder, ...], bool]:
    """The workloads that a device's processes are, and whether the multi-process service is among them.

    Processes of one container, one engine or one session (`group`) are one workload.
    """
    found: dict[str, Holder] = {}
    mps = False
    for process in processes:
        told = who[process.pid]
        if told.command.startswith(SERVER):
            mps = True
            continue
        key = told.container or told.pod_uid or group.get(process.pid) or f"pid {process.pid}"
        found.setdefault(key, Holder(pod_uid=told.pod_uid, container_id=told.container, pid=process.pid))
    return tuple(found.values()), mps


def _sharing(by_name: tuple[Holder, ...], count: int, mps: bool) -> str:
    if count < 2:
        return ""
    if mps:
        return "mps"
    return "time_slicing" if any(holder.replica for holder in by_name) or len(by_name) > 1 else "processes"
