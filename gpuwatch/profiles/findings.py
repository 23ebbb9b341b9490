"""What a summary proves. Each reading has the number it rests on; where nothing stands out, nothing is said.

Cut-offs are shares of the traced span and proposals of ours: a class below them exists and does not decide.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .summary import DeviceSummary

UNPACKING_SHARE = 0.15
WAITING_SHARE = 0.4
COLLECTIVE_SHARE = 0.3
BANDWIDTH_FLOPS_PER_BYTE = 60.0
"""Below, an accelerator of today (150 operations a byte and more) waits for memory, not for tensor cores."""
PRODUCTS_SHARE = 0.4


class Reading(msgspec.Struct, frozen=True):
    """One conclusion on one device: the incident class it supports (empty: none), in words, with its number."""

    device: str
    what: Literal["quantization_fallback", "quantized_kernels_run", "bandwidth_bound", "waiting", "communication"]
    supports: str
    because: str
    observed: float
    limit: float


def readings(devices: tuple[DeviceSummary, ...]) -> tuple[Reading, ...]:
    """All that follows, strongest kind first."""
    return tuple(reading for device in devices for reading in _of(device))


def _of(d: DeviceSummary) -> list[Reading]:
    found: list[Reading] = []
    unpacking, packed, dense = d.share("dequantize"), d.share("quantized_gemm"), d.share("gemm")
    if unpacking >= UNPACKING_SHARE and dense > 0 and unpacking > packed:
        found.append(
            Reading(
                d.device, "quantization_fallback", "quantization_fallback",
                f"{unpacking:.0%} of the time unpacks weights, and dense products take {dense:.0%}: "
                "no quantized kernel does the work",
                unpacking, UNPACKING_SHARE,
            )
        )  # fmt: skip
    elif packed >= max(dense, 0.1):
        found.append(
            Reading(
                d.device, "quantized_kernels_run", "", f"products read packed weights in {packed:.0%} of the time", packed, 0.1
            )
        )  # fmt: skip
    p = d.products
    if d.on_device and p is not None and dense >= PRODUCTS_SHARE and p.flops_per_byte < BANDWIDTH_FLOPS_PER_BYTE:
        found.append(
            Reading(
                d.device, "bandwidth_bound", "",
                f"dense products take {dense:.0%} of the time at {p.flops_per_byte:.1f} operations a byte and "
                f"{p.bytes_per_second / 1e9:.0f} GB/s: they wait for memory, a larger batch costs little",
                p.flops_per_byte, BANDWIDTH_FLOPS_PER_BYTE,
            )
        )  # fmt: skip
    if d.gap_share >= WAITING_SHARE:
        found.append(
            Reading(
                d.device, "waiting", "frontend_cpu_bottleneck" if d.gap_median_s > 1e-3 else "",
                f"nothing ran in {d.gap_share:.0%} of the time, in gaps of {d.gap_median_s * 1e6:.0f} µs (median): "
                "the device waits for launches, the scheduler or the host",
                d.gap_share, WAITING_SHARE,
            )
        )  # fmt: skip
    if d.share("collective") >= COLLECTIVE_SHARE:
        share = d.share("collective")
        found.append(
            Reading(
                d.device, "communication", "straggler_gpu",
                f"{share:.0%} of the time in collectives: a slow link, or this device waits for a slower one",
                share, COLLECTIVE_SHARE,
            )
        )  # fmt: skip
    return found
