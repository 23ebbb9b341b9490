"""What is asked of an AMD device, by which call of amdsmi, and where in the answer the signal lies: a table.

Meanings are near, not equal: `gfx_activity` is the share of time the graphics and compute engine was busy, `umc_activity`
that of the memory controllers (busy, not bytes ÷ peak). amdsmi has nothing like SM activity or occupancy. Names of keys
changed between releases; older ones stand behind newer ones. What amdsmi does not know is the string "N/A".
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

MIB = 1024.0 * 1024.0
MEGA = 1e6


class Pick(msgspec.Struct, frozen=True):
    """A signal in an answer: the first of `keys` ("a.b" goes into a dictionary; "" is the whole) that is a number.

    `positive`: zero means "not told" there.
    """

    signal: str
    keys: tuple[str, ...]
    factor: float = 1.0
    positive: bool = False


class Call(msgspec.Struct, frozen=True):
    """One call. `arguments` are names in amdsmi (`AmdSmiClkType.GFX`)."""

    name: str
    picks: tuple[Pick, ...]
    arguments: tuple[str, ...] = ()
    lane: Literal["fast", "slow"] = "fast"


_NOW = "AmdSmiTemperatureMetric.CURRENT"

CALLS: tuple[Call, ...] = (
    Call("amdsmi_get_gpu_activity", (
        Pick("gpu_gr_engine_active_ratio", ("gfx_activity",), 0.01),
        Pick("gpu_util_ratio", ("gfx_activity",), 0.01),
        Pick("gpu_dram_active_ratio", ("umc_activity",), 0.01),
    )),
    Call("amdsmi_get_gpu_vram_usage", (
        Pick("gpu_memory_used_bytes", ("vram_used",), MIB),
        Pick("gpu_memory_total_bytes", ("vram_total",), MIB, positive=True),
    )),
    Call("amdsmi_get_gpu_memory_usage", (Pick("gpu_memory_used_bytes", ("",)),), ("AmdSmiMemoryType.VRAM",)),
    Call("amdsmi_get_power_info", (
        Pick("gpu_power_watts", ("socket_power", "current_socket_power", "average_socket_power"), positive=True),
        Pick("gpu_power_limit_watts", ("power_limit",), positive=True),
    )),
    Call("amdsmi_get_clock_info", (
        Pick("gpu_sm_clock_hertz", ("clk", "cur_clk"), MEGA),
        Pick("gpu_sm_clock_max_hertz", ("max_clk",), MEGA, positive=True),
    ), ("AmdSmiClkType.GFX",)),
    Call("amdsmi_get_clock_info", (Pick("gpu_memory_clock_hertz", ("clk", "cur_clk"), MEGA),), ("AmdSmiClkType.MEM",)),
    Call("amdsmi_get_temp_metric", (Pick("gpu_temperature_celsius", ("",)),), ("AmdSmiTemperatureType.HOTSPOT", _NOW)),
    Call("amdsmi_get_temp_metric", (Pick("gpu_temperature_celsius", ("",)),), ("AmdSmiTemperatureType.EDGE", _NOW)),
    Call("amdsmi_get_temp_metric", (
        Pick("gpu_memory_temperature_celsius", ("",)),
    ), ("AmdSmiTemperatureType.VRAM", _NOW)),
    Call("amdsmi_get_gpu_total_ecc_count", (
        Pick("gpu_ecc_corrected_total", ("correctable_count",)),
        Pick("gpu_ecc_uncorrected_total", ("uncorrectable_count",)),
    ), lane="slow"),
    Call("amdsmi_get_pcie_info", (
        Pick("gpu_pcie_link_width", ("pcie_metric.pcie_width",)),
        Pick("gpu_pcie_replay_total", ("pcie_metric.pcie_replay_count",)),
    ), lane="slow"),
)  # fmt: skip
"""Asked in this order; an earlier answer stands before a later one for the same signal."""

POWER = "ppt_pwr"
THERMAL = ("socket_thrm", "hbm_thrm", "vr_thrm", "prochot_thrm")
"""Causes in amdsmi_get_violation_status, where each has acc_ (a counter), per_ (percent) and active_ (now)."""

FACTS: dict[str, tuple[tuple[str, str], ...]] = {
    "amdsmi_get_gpu_asic_info": (("market_name", "model"), ("target_graphics_version", "architecture")),
    "amdsmi_get_gpu_driver_info": (("driver_version", "driver"),),
    "amdsmi_get_gpu_device_bdf": (("", "pci_bus_id"),),
    "amdsmi_get_gpu_vram_info": (("vram_max_bandwidth", "vram_max_bandwidth_gb_per_second"),),
}
"""Call → (key of its answer, fact)."""


def number(answer: Any, key: str) -> float:
    """The number under a key; NaN for "N/A" and everything else that is none."""
    for part in filter(None, key.split(".")):
        answer = answer.get(part) if isinstance(answer, dict) else None
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return float(answer) if isinstance(answer, bool) else math.nan
    return float(answer)


def picked(answer: Any, pick: Pick) -> float:
    """The signal in base units; NaN where no key has a number."""
    for key in pick.keys:
        value = number(answer, key)
        if value == value and (value > 0 or not pick.positive):
            return value * pick.factor
    return math.nan
