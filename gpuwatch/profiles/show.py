"""A summary as one screen of text. Names come from a file: what cannot be printed is replaced."""

from __future__ import annotations

from .classes import KERNEL_CLASSES
from .findings import Reading
from .summary import DeviceSummary

_BAR = 24


def render(devices: tuple[DeviceSummary, ...], found: tuple[Reading, ...]) -> str:
    """For each device its classes with bars, its longest kernels, then what follows."""
    lines: list[str] = []
    for d in devices:
        name = f"device {d.device}" if d.on_device else d.device
        lines.append(
            f"{_printable(name)}: {d.span_s * 1e3:.1f} ms traced, busy {1 - d.gap_share:.0%}, "
            f"{d.launches_per_second:,.0f} launches a second"
        )
        rows = [(s.name, s.share, KERNEL_CLASSES[s.name]) for s in d.classes] + [("gaps", d.gap_share, "nothing ran")]
        lines += [
            f"  {kind:<15} {share:>6.1%} {'█' * round(share * _BAR):<{_BAR}} {what}"
            for kind, share, what in rows
            if share >= 0.0005
        ]
        typed = ", ".join(f"{s.name} {s.share:.1%}" for s in d.gemm_types[:6])
        lines += [f"  products by type: {typed}"] if typed else []
        lines += ["  longest:"] + [f"    {s.share:>6.1%} ×{s.calls:<6} {_printable(s.name)[:90]}" for s in d.longest]
        lines.append("")
    lines += [f"{reading.what}: {reading.because} (device {_printable(reading.device)})" for reading in found] or [
        "nothing stands out: no unpacking of weights, no long gaps, no waiting for other devices"
    ]
    return "\n".join(lines) + "\n"


def _printable(words: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in words)
