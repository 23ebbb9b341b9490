"""What a device could do at best: memory bandwidth from the device itself, dense tensor rates from a table.

A driver tells bus width and memory clock, from which the bandwidth follows (two transfers a clock). It does not tell
tensor rates; those are the vendors' dense figures, keyed by the exact name and the memory size, since silicon of
different speed is sold under one name. An unknown device has no peak rather than a guessed one.
"""

from __future__ import annotations

import math

import msgspec

GB = 1e9


class Peak(msgspec.Struct, frozen=True):
    """Vendor's figures: memory of the card in GB, bandwidth in bytes/s, dense FLOP/s at bf16 and fp8 (0: not told)."""

    memory_gb: float
    dram_bytes_per_second: float
    bf16_flops: float
    fp8_flops: float = 0.0


PEAKS: dict[str, tuple[Peak, ...]] = {
    "NVIDIA A10": (Peak(24, 0.600e12, 125e12),),
    "NVIDIA L4": (Peak(24, 0.300e12, 121e12, 242e12),),
    "NVIDIA L40S": (Peak(48, 0.864e12, 362e12, 733e12),),
    "NVIDIA A100-SXM4-40GB": (Peak(40, 1.555e12, 312e12),),
    "NVIDIA A100-PCIE-40GB": (Peak(40, 1.555e12, 312e12),),
    "NVIDIA A100-SXM4-80GB": (Peak(80, 2.039e12, 312e12),),
    "NVIDIA A100 80GB PCIe": (Peak(80, 1.935e12, 312e12),),
    "NVIDIA H100 80GB HBM3": (Peak(80, 3.35e12, 989e12, 1979e12),),
    "NVIDIA H100 PCIe": (Peak(80, 2.0e12, 756e12, 1513e12),),
    "NVIDIA H100 NVL": (Peak(94, 3.9e12, 835e12),),
    "NVIDIA H200": (Peak(141, 4.8e12, 989e12, 1979e12),),
    "NVIDIA B200": (Peak(180, 8.0e12, 2250e12, 4500e12),),
    "AMD Instinct MI300X": (Peak(192, 5.3e12, 1307e12, 2614e12),),
}
_TOLERANCE = 0.12
"""A driver counts memory in its own way: 80 GB are 79.6 to 85.9."""


def known(name: str, memory_bytes: float) -> Peak | None:
    """The table's row for this very device; None where name or memory do not agree."""
    for peak in PEAKS.get(name, ()):
        if abs(memory_bytes / GB / peak.memory_gb - 1) <= _TOLERANCE:
            return peak
    return None


def told(bus_bits: float, memory_clock_hertz: float) -> float:
    """Bandwidth in bytes/s as the device's own figures give it; NaN where one is missing."""
    value = bus_bits / 8 * memory_clock_hertz * 2
    return value if value > 0 else math.nan


def facts(name: str, memory_bytes: float, bandwidth: float) -> dict[str, str]:
    """Peaks as facts, with where they come from."""
    row = known(name, memory_bytes)
    found: dict[str, str] = {}
    if bandwidth == bandwidth:
        found = {"peak_dram_bytes_per_second": f"{bandwidth:.4g}", "peak_dram_from": "device"}
    elif row is not None:
        found = {"peak_dram_bytes_per_second": f"{row.dram_bytes_per_second:.4g}", "peak_dram_from": "table"}
    if row is not None:
        found["peak_bf16_flops"] = f"{row.bf16_flops:.4g}"
        if row.fp8_flops:
            found["peak_fp8_flops"] = f"{row.fp8_flops:.4g}"
    return found
