"""What the kernel and dcgm-exporter write about devices: XIDs, a lost device, an exporter that is blind or frozen."""

from __future__ import annotations

import re

from .found import Found, Notice, Phrase, says

_PCI = r"((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PCI}\): (\d{{1,4}})(?!\d)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,4})")
_LOST = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_PCI}")

_NO_HANDLE = re.compile(rf"Unable to determine the device handle for GPU ?{_PCI}: (?:GPU is lost|Unknown Error)")
_HELD_DOWN = re.compile(r"Detected clocks? ?(?:event|throttling) due to (thermal|power) violation in GPU (\d{1,4})")


def _xid(text: str, at: int) -> tuple[Found, ...]:
    found = _XID.match(text, at)
    if not found:
        return ()
    detail = {"code": found[2], "pci": found[1].lower()}
    previous = _PREVIOUS.search(text, at, at + 512)
    if previous:
        detail["previous"] = previous[1]
    return (Notice("xid", detail),)


def _lost(text: str, at: int) -> tuple[Found, ...]:
    """Some drivers say so without an XID; the XID's own line says it too, and counts as that."""
    if "NVRM: Xid" in text[:at]:
        return ()
    found = _LOST.search(text[max(0, at - 200) : at])
    return (Notice("gpu_lost", {"pci": found[1].lower()} if found else {}),)


def _no_handle(text: str, at: int) -> tuple[Found, ...]:
    """nvidia-smi's word for a device that the driver lists and cannot reach any more."""
    found = _NO_HANDLE.match(text, at)
    return (Notice("gpu_lost", {"pci": found[1].lower()}),) if found else ()


def _held_down(text: str, at: int) -> tuple[Found, ...]:
    """DCGM's health check: a limit holds a device's clock down."""
    found = _HELD_DOWN.match(text, at)
    return (Notice("clock_held_down", {"cause": found[1], "index": found[2]}),) if found else ()


PHRASES = (
    Phrase("NVRM: Xid (", "kernel", _xid),
    Phrase("fallen off the bus", "kernel", _lost),
    Phrase("Unable to determine the device handle for GPU", "", _no_handle),
    *(
        Phrase(f"Detected clock{word} due to {cause} violation in GPU ", "dcgm", _held_down)
        for word in ("s event", " throttling", "s throttling")
        for cause in ("thermal", "power")
    ),
    Phrase("Host engine connection invalid/disconnected", "dcgm", says("exporter_disconnected")),
    Phrase("Not collecting DCP metrics", "dcgm", says("exporter_blind")),
    Phrase("metric not enabled", "dcgm", says("exporter_blind")),
)
