"""The doctor's look at devices: what exporters' pages lack, which engine has which device and how that is known, and which
rights are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..sources.gpu.dcgm import DcgmSource
from ..sources.gpu.dcgm.fields import DCGM, OURS
from ..sources.gpu.ownership.mapping import EngineDevices
from ..sources.gpu.ownership.source import OwnershipSource
from . import dcgm_counters
from .drivers import DriverLook, driver_lines, drivers_of

SLOW_S = 5.0
LEAST_LOOK_S = 3.0
"""A page that stays the same for so long is not renewed every second."""
COLLECT = "dcgm-exporter --collect-interval=1000 (its default is 30000 ms)"
COUNTERS = "gpuwatch doctor --print-counters > counters.csv; dcgm-exporter -f counters.csv"


class ExporterLook(msgspec.Struct, frozen=True):
    """A page of devices: whose it is, how many devices, which fields it lacks and what that blinds, and how often it renews.

    `renews_s` is None where it was not renewed within the `looked_s` seconds. `unread`: fields that nobody here reads.
    """

    url: str
    kind: str
    devices: int
    missing: dict[str, str]
    renews_s: float | None
    looked_s: float
    unread: int
    change: str = ""


class OwnedDevices(msgspec.Struct, frozen=True):
    """An engine's devices, who said so (empty: nobody), who is on them too, and what each of the others said."""

    engine: str
    gpus: tuple[str, ...]
    how: str
    shared: dict[str, str]
    others: dict[str, str]
    change: str = ""


class DeviceLook(msgspec.Struct, frozen=True):
    """Everything about devices. `rights`: what may not be read, and what would allow it."""

    exporters: list[ExporterLook]
    engines: list[OwnedDevices]
    rights: list[str]
    drivers: list[DriverLook] = []


def look_at(sources: Sequence[Any], seconds: float, driver_wanted: bool = False) -> DeviceLook:
    """What the sources know after they were polled for so many seconds. `driver_wanted`: say it where there is none."""
    ownership = next((s for s in sources if isinstance(s, OwnershipSource)), None)
    exporters = [_exporter(s, seconds) for s in sources if isinstance(s, DcgmSource) and s.page.names]
    owned = [_owned(one, ownership) for one in ownership.map.engines.values()] if ownership else []
    wanted = driver_wanted and not any(isinstance(s, DcgmSource) for s in sources)
    return DeviceLook(exporters, owned, list(_rights(sources, ownership)), drivers_of(sources, wanted))


def _exporter(source: DcgmSource, seconds: float) -> ExporterLook:
    page = source.page
    is_node, is_dcgm = any(n.startswith(OURS) for n in page.names), any(n in DCGM for n in page.names)
    kind = "node agent" if is_node else "dcgm-exporter" if is_dcgm else "AMD device-metrics-exporter"
    renews_s = page.renews_s if page.renews_s == page.renews_s else None
    lacking = dcgm_counters.missing(page.names) if kind == "dcgm-exporter" else []
    slow = kind == "dcgm-exporter" and (renews_s > SLOW_S if renews_s is not None else seconds >= LEAST_LOOK_S)
    changes = [COUNTERS] * bool(lacking) + [COLLECT] * slow
    return ExporterLook(
        source.url, kind, len(page.devices), {w.field: w.blinds for w in lacking}, renews_s, seconds, len(page.unmapped),
        "; ".join(changes),
    )  # fmt: skip


def _owned(one: EngineDevices, ownership: OwnershipSource) -> OwnedDevices:
    devices = ownership.map.devices
    shared = {
        gpu: f"{devices[gpu].sharing}: {', '.join(holder.words for holder in devices[gpu].holders)}"
        for gpu in one.gpus
        if gpu in devices and devices[gpu].sharing
    }
    others = {claim.how: claim.why for claim in one.claims if claim.why}
    if one.contradiction:
        others["contradiction"] = one.contradiction
    some = ", ".join(f'"{gpu}"' for gpu in list(devices)[:8])
    change = "" if one.gpus or not devices else f"name its own in its [[engines]] table: gpus = [some of {some}]"
    return OwnedDevices(one.engine, one.gpus, one.how, shared, others, change)


def _rights(sources: Sequence[Any], ownership: OwnershipSource | None) -> Iterable[str]:
    for source in sources:
        if source.name != "nvml":
            continue
        for uuid, facts in source.devices().items():
            if facts.get("no_permission"):
                yield f"{uuid}: the driver refuses {facts['no_permission']}: run the node's agent as root"
            if "permission" in facts.get("gpm", "") and "Gpm" not in facts.get("no_permission", ""):
                yield f"{uuid}: no GPM: {facts['gpm'].removeprefix('no: ')}: run the node's agent as root"
        if ownership is not None and source.owners() and not ownership.hosts_proc:
            yield "processes on devices are the host's, which this agent does not see: hostPID: true"
    if ownership is not None and ownership.kubelet_says.endswith(("Permission denied", "permission denied")):
        yield f"{ownership.kubelet_says}: root, and the folder mounted read-only"


def lines(look: DeviceLook) -> list[str]:
    """The look for people; text from outside is not yet safe for a terminal."""
    out = driver_lines(look.drivers)
    if look.exporters:
        out += ["", "device pages"]
    for page in look.exporters:
        known = page.renews_s is not None
        pace = f", renewed every {page.renews_s:.0f} s" if known else f", not renewed within {page.looked_s:.0f} s"
        out.append(f"  {'--' if page.change else 'ok'}  {page.url}: {page.kind}, {page.devices} devices{pace}")
        out += [f"      lacks {field}: {blinds}" for field, blinds in page.missing.items()]
        out += [f"      {change}" for change in page.change.split("; ") if change]
    if look.engines:
        out += ["", "whose device"]
    for one in look.engines:
        told = f"{', '.join(one.gpus)} (by {one.how})" if one.gpus else "not known: what needs a device is blind"
        out.append(f"  {'ok' if one.gpus else '--'}  {one.engine}: {told}")
        out += [f"      {gpu} is shared by {how}" for gpu, how in one.shared.items()]
        if not one.gpus or "contradiction" in one.others:
            out += [f"      {who}: {why}" for who, why in one.others.items() if not one.gpus or who == "contradiction"]
        if one.change:
            out.append(f"      {one.change}")
    if look.rights:
        out += ["", "rights", *(f"  --  {what}" for what in look.rights)]
    return out
