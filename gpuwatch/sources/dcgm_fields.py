"""dcgm-exporter's names → catalogue signals in base units: both generations of field names, side by side.

Units come from the field, never from its HELP text, which is wrong in some releases. `DEV_GPU_UTIL_RATIO` is a percent
despite its name.
"""

from __future__ import annotations

import msgspec

MIB = 1024.0 * 1024.0


class Field(msgspec.Struct, frozen=True):
    """One exporter field. `board` values belong to the whole device and repeat on every MIG instance."""

    signal: str
    factor: float = 1.0
    board: bool = False


FREE, RESERVED = "free_bytes", "reserved_bytes"
REASONS, THROTTLED_NS = "clock_event_reasons", "throttled_ns"
"""What is needed to compute a signal and is none itself."""

SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""Clock event reasons that are a slowdown: hardware, software thermal, hardware thermal, power brake."""

_DEV, _PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"

FIELDS: dict[str, Field] = {
    _DEV + "GPU_UTIL": Field("gpu_util_ratio", 0.01),
    _DEV + "GPU_UTIL_RATIO": Field("gpu_util_ratio", 0.01),
    _PROF + "GR_ENGINE_ACTIVE": Field("gpu_gr_engine_active_ratio"),
    _PROF + "GR_ENGINE_UTIL_RATIO": Field("gpu_gr_engine_active_ratio"),
    _PROF + "SM_ACTIVE": Field("gpu_sm_active_ratio"),
    _PROF + "SM_UTIL_RATIO": Field("gpu_sm_active_ratio"),
    _PROF + "SM_OCCUPANCY": Field("gpu_sm_occupancy_ratio"),
    _PROF + "SM_OCCUPANCY_RATIO": Field("gpu_sm_occupancy_ratio"),
    _PROF + "PIPE_TENSOR_ACTIVE": Field("gpu_tensor_active_ratio"),
    _PROF + "TENSOR_UTIL_RATIO": Field("gpu_tensor_active_ratio"),
    _PROF + "DRAM_ACTIVE": Field("gpu_dram_active_ratio"),
    _PROF + "DRAM_UTIL_RATIO": Field("gpu_dram_active_ratio"),
    _DEV + "FB_USED": Field("gpu_memory_used_bytes", MIB),
    _DEV + "FB_FREE": Field(FREE, MIB),
    _DEV + "FB_RESERVED": Field(RESERVED, MIB),
    _DEV + "FB_TOTAL": Field("gpu_memory_total_bytes", MIB),
    _DEV + "SM_CLOCK": Field("gpu_sm_clock_hertz", 1e6, board=True),
    _DEV + "MAX_SM_CLOCK": Field("gpu_sm_clock_max_hertz", 1e6, board=True),
    _DEV + "POWER_USAGE": Field("gpu_power_watts", board=True),
    _DEV + "BOARD_POWER_WATTS": Field("gpu_power_watts", board=True),
    _DEV + "POWER_MGMT_LIMIT": Field("gpu_power_limit_watts", board=True),
    _DEV + "ENFORCED_POWER_LIMIT": Field("gpu_power_limit_watts", board=True),
    _DEV + "TOTAL_ENERGY_CONSUMPTION": Field("gpu_energy_joules_total", 1e-3, board=True),
    _DEV + "GPU_TEMP": Field("gpu_temperature_celsius", board=True),
    _DEV + "GPU_TEMP_CELSIUS": Field("gpu_temperature_celsius", board=True),
    _DEV + "XID_ERRORS": Field("gpu_xid_last_code", board=True),
    _DEV + "XID_ERROR": Field("gpu_xid_last_code", board=True),
    _DEV + "CLOCK_THROTTLE_REASONS": Field(REASONS, board=True),
    _DEV + "CLOCKS_EVENT_REASONS": Field(REASONS, board=True),
    _DEV + "THERMAL_VIOLATION": Field(THROTTLED_NS, board=True),
}

NAMES = frozenset(FIELDS)

LABELS = {
    "gpu": "index", "device": "device", "modelName": "model", "DCGM_FI_DRIVER_VERSION": "driver",
    "Hostname": "node", "hostname": "node", "GPU_I_PROFILE": "mig_profile",
    "pod": "pod", "exported_pod": "pod", "namespace": "namespace", "exported_namespace": "namespace",
}  # fmt: skip
"""The exporter's labels → facts. `exported_*` comes last: it is the workload's where both are there."""


def is_blank(raw: float) -> bool:
    """True for DCGM's "no value" sentinels, whatever their width, and for NaN."""
    return raw != raw or (raw >= 1.4e14 and _is_sentinel(raw)) or 0x7FFFFFF0 <= raw <= 0x7FFFFFF3


def _is_sentinel(raw: float) -> bool:
    """Doubles from 140737488355328 (2^47) up to four above; 64-bit integers from 0x7ffffffffffffff0, as doubles."""
    return raw < 1.4073748835533e14 + 16 or raw >= 9.2e18
