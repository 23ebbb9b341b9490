"""GPU hardware fault: the device or its memory fails; what the engine says afterwards is a consequence.

XID codes tell the driver's side. Some are raised by a program (13, 31, 43, 45: a bad address, a channel torn down), some by
the device. A gauge holds the last code for ever: it dates nothing and counts nothing. The text "uncorrectable ECC" in an
engine's log without any telemetry has been seen without a fault; it is a suspicion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..sighting import Sighting
from ..track import Sight, number

HARDWARE = {
    48: "double-bit memory error", 54: "auxiliary power missing", 61: "internal micro-controller fault",
    62: "internal micro-controller halt", 63: "row remapping recorded", 64: "row remapping failed",
    74: "NVLink error", 79: "fallen off the bus", 92: "high rate of single-bit errors",
    94: "contained memory error", 95: "uncontained memory error", 109: "context switch timeout",
    110: "security fault", 119: "firmware (GSP) does not answer", 120: "firmware (GSP) error",
    121: "chip-to-chip link error", 136: "link training failed", 140: "unrecovered memory error",
    142: "initialisation failed", 143: "initialisation failed", 144: "NVLink fault", 145: "NVLink fault",
    146: "NVLink fault", 147: "NVLink fault", 148: "NVLink fault", 149: "NVLink fault", 150: "NVLink fault",
    151: "key rotation error", 154: "recovery action changed: a reset is needed", 155: "NVLink down",
    156: "resource retired", 157: "resource retirement failed", 158: "fatal timeout", 160: "channel retired",
    161: "channel retirement failed", 171: "memory error in DRAM", 172: "memory error in SRAM",
}  # fmt: skip
"""Codes of the device, its memory, links, firmware or power."""

APPLICATION = {
    8: "program stopped", 13: "graphics engine exception", 31: "memory page fault", 32: "bad push buffer",
    43: "program stopped", 45: "channel torn down after another error", 68: "video engine exception",
    69: "graphics engine class error", 137: "NVLink privilege error",
}  # fmt: skip
"""Codes that a program causes, or that follow from another error."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Codes and memory errors of every subject, device or engine."""
    telemetry = any("gpu_ecc_uncorrected_total" in g.tracks or "gpu_xid_last_code" in g.tracks for g in s.gpus)
    for seen in list(s.sights.values()):
        codes, dated = _codes(seen)
        bad = [c for c in codes if c in HARDWARE or c not in APPLICATION]
        counters = list(_counters(seen))
        if bad or counters:
            yield _fault(seen, bad, dated, counters)
        elif codes and dated:
            yield _by_program(seen, codes)
        if (ecc := seen.notices.get("ecc_error")) is not None and not bad:
            yield _ecc_text(seen, ecc.count, ecc.first_at, telemetry, _memory_fault_elsewhere(s))


def _codes(seen: Sight) -> tuple[list[int], float]:
    """The codes in the order of their number, and since when (0.0: only a sticky gauge, which has no date)."""
    codes: set[int] = set()
    dated = 0.0
    for kept in (seen.notices.get("xid"), seen.events.get("xid")):
        if kept is not None:
            told_by = (*kept.words.get("code", {}), *kept.words.get("previous", {}))  # "caused by previous Xid 149"
            codes |= {int(number(text)) for text in told_by if not math.isnan(number(text))}
            dated = kept.first_at
    if (lost := seen.notices.get("gpu_lost") or seen.events.get("gpu_lost")) is not None:
        codes.add(79)
        dated = lost.first_at
    sticky = seen.track("gpu_xid_last_code")
    if sticky is not None and sticky.greatest > 0:
        codes |= {int(v) for v in (sticky.first, sticky.last, sticky.greatest) if v > 0}
    return sorted(codes), dated


def _counters(seen: Sight) -> Iterator[tuple[str, float]]:
    """What the device itself reports as broken."""
    lost = seen.track("gpu_up")
    if lost is not None and lost.least == 0:
        yield "gpu_up", 0.0
    for name in ("gpu_remap_failed", "gpu_remap_pending", "gpu_recovery_action"):
        track = seen.track(name)
        if track is not None and track.last > 0:
            yield name, track.last
    grew = seen.growth("gpu_ecc_uncorrected_total")
    total = seen.last("gpu_ecc_uncorrected_total")
    if grew > 0 or (math.isnan(grew) and total > 0):
        yield "gpu_ecc_uncorrected_total", total


def _fault(seen: Sight, codes: list[int], dated: float, counters: list[tuple[str, float]]) -> Clue:
    unsaid = {79} - _said(seen) if "gpu_lost" in (*seen.notices, *seen.events) else set()
    names = ", ".join(
        "the device is lost" if c in unsaid else f"XID {c} ({HARDWARE.get(c, 'no code of a program')})" for c in codes
    )
    shown = ", ".join(f"{name} {value:.0f}" for name, value in counters)
    sure = 0.85 if dated and any(c in HARDWARE for c in codes) else 0.6 if codes else 0.55
    sure = min(0.95, sure + (0.1 if codes and counters else 0.0) + (0.05 if len(codes) > 1 else 0.0))
    undated = "" if dated or not codes else " The gauge keeps its last code for ever: when this happened is not known."
    gone = bool({79, 119, 154} & set(codes)) or ("gpu_up", 0.0) in counters
    return Clue(
        "gpu_hardware_fault", seen.subject, sure,
        f"The GPU reports a fault of its own: {', '.join(filter(None, (names, shown)))}.{undated}"
        " Errors of the engine after it are consequences.",
        dated or seen.first_at, "xid" if codes else "memory_errors", "page" if gone and dated else "ticket", "device",
        evidence=(*(told(seen, *_named(c, unsaid)) for c in codes), *(told(seen, n, v, 0.0, ">") for n, v in counters)),
        ruled_out=(not_this("engine_crash", "the device failed first; the engine's messages come after it"),) if dated else (),
        explains=("engine_crash", "engine_hang", "capacity_loss", "start_failure", "straggler_gpu", "stale_telemetry"),
        named=bool(dated),
        look_next="the kernel's log around it (dmesg), remapped rows and pending resets of this device",
    )  # fmt: skip


def _said(seen: Sight) -> set[int]:
    """The codes that somebody wrote."""
    kept = [k for k in (seen.notices.get("xid"), seen.events.get("xid")) if k is not None]
    return {int(number(text)) for k in kept for text in k.words.get("code", {}) if not math.isnan(number(text))}


def _named(code: int, unsaid: set[int]) -> tuple[str, str]:
    return ("device", "lost") if code in unsaid else ("XID code", str(code))


def _by_program(seen: Sight, codes: list[int]) -> Clue:
    names = ", ".join(f"XID {c} ({APPLICATION[c]})" for c in codes)
    return Clue(
        "engine_crash", seen.subject, 0.5,
        f"{names}: raised by a program's work on the GPU, or in the wake of another error; no fault of the device is shown.",
        seen.first_at, "application_xid", "ticket", "service",
        evidence=tuple(told(seen, "XID code", str(c)) for c in codes),
        ruled_out=(not_this("gpu_hardware_fault", "no code of the device itself, no memory error"),),
        instead=instead(("gpu_hardware_fault", 0.25)),
        look_next="which process it names, and whether it repeats with another program on the same device",
    )  # fmt: skip


def _ecc_text(seen: Sight, n: int, at: float, telemetry: bool, agrees: bool) -> Clue:
    sure = 0.9 if agrees else 0.45 if telemetry else 0.55
    why = (
        "the device's own counters agree" if agrees
        else "the device's counters show none: not proven" if telemetry
        else "no XID, remapping or ECC counter is at hand to confirm it"
    )  # fmt: skip
    return Clue(
        "gpu_hardware_fault", seen.subject, sure,
        f"The engine reports an uncorrectable memory error of the GPU ({n} messages); {why}.",
        at, "uncorrectable_ecc", "page", "device",
        evidence=(counted("ecc_error", n),),
        ruled_out=(not_this("memory_fragmentation", "the message is a memory error, no shortage of memory"),),
        instead=() if agrees else instead(("engine_crash", 0.3)),
        explains=("engine_crash", "engine_hang", "start_failure"),
        named=True,
        look_next="dmesg for XID 48, 63, 64, 94 or 95, and ECC and remapped-row counters of this device",
    )  # fmt: skip


def _memory_fault_elsewhere(s: Sighting) -> bool:
    memory = {48, 63, 64, 92, 94, 95, 140, 171, 172}
    return any(set(_codes(o)[0]) & memory or list(_counters(o)) for o in s.sights.values())
