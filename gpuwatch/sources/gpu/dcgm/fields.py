"""Exporters' names → catalogue signals in base units. dcgm-exporter's two generations of names stand side by side.

Units come from the field, never from its HELP text, which is wrong in some releases. `DEV_GPU_UTIL_RATIO` is a percent
despite its name. Times slowed down are nanoseconds, although older comments say microseconds.
"""

from __future__ import annotations

import msgspec

from ....catalog import CATALOG

MIB = 1024.0 * 1024.0


class Field(msgspec.Struct, frozen=True):
    """One exporter field.

    `board` values belong to the whole device and repeat on every MIG instance. `mig` is False for what means nothing
    on a device that is cut into instances: the driver does not say, and some releases print 0.
    """

    signal: str
    factor: float = 1.0
    board: bool = False
    mig: bool = True


FREE, REASONS, XID_COUNT, OWNER, READ_AT = "free_bytes", "clock_event_reasons", "xid_count", "owner", "read_at"
CLOCK_EVENTS = "clock_events"
BY_LABEL = {XID_COUNT: "xid", CLOCK_EVENTS: "clock_event"}
"""Counts of the last minutes, one series for each value of a label."""
POWER_NS, SYNC_NS, BRAKE_NS = "throttled_power_ns", "throttled_sync_ns", "throttled_brake_ns"
THERMAL_NS = ("throttled_thermal_ns", "throttled_sw_thermal_ns", "throttled_hw_thermal_ns")
SERVING = frozenset({FREE, REASONS, XID_COUNT, CLOCK_EVENTS, OWNER, READ_AT, POWER_NS, SYNC_NS, BRAKE_NS, *THERMAL_NS})
"""What is needed to compute a signal and is none itself."""

UNNAMED_BITS = 0x8 | 0x80
"""Clock event reasons that no counter of older drivers covers: hardware slowdown and power brake."""
SLOWDOWN_BITS = UNNAMED_BITS | 0x20 | 0x40
"""Every reason that is a slowdown: those, and software and hardware thermal."""

_DEV, _PROF, _EVENT = "DCGM_FI_DEV_", "DCGM_FI_PROF_", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"

DCGM: dict[str, Field] = {
    _DEV + "GPU_UTIL": Field("gpu_util_ratio", 0.01, mig=False),
    _DEV + "GPU_UTIL_RATIO": Field("gpu_util_ratio", 0.01, mig=False),
    _DEV + "MEM_COPY_UTIL": Field("gpu_memory_busy_ratio", 0.01, mig=False),
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
    _PROF + "PCIE_TX_BYTES": Field("gpu_pcie_tx_bytes_per_second"),
    _PROF + "PCIE_RX_BYTES": Field("gpu_pcie_rx_bytes_per_second"),
    _PROF + "NVLINK_TX_BYTES": Field("gpu_nvlink_tx_bytes_per_second"),
    _PROF + "NVLINK_RX_BYTES": Field("gpu_nvlink_rx_bytes_per_second"),
    _DEV + "FB_USED": Field("gpu_memory_used_bytes", MIB),
    _DEV + "FB_FREE": Field(FREE, MIB),
    _DEV + "FB_RESERVED": Field("gpu_memory_reserved_bytes", MIB),
    _DEV + "FB_TOTAL": Field("gpu_memory_total_bytes", MIB),
    _DEV + "SM_CLOCK": Field("gpu_sm_clock_hertz", 1e6, board=True),
    _DEV + "MAX_SM_CLOCK": Field("gpu_sm_clock_max_hertz", 1e6, board=True),
    _DEV + "MEM_CLOCK": Field("gpu_memory_clock_hertz", 1e6, board=True),
    _DEV + "POWER_USAGE": Field("gpu_power_watts", board=True),
    _DEV + "BOARD_POWER_WATTS": Field("gpu_power_watts", board=True),
    _DEV + "POWER_MGMT_LIMIT": Field("gpu_power_limit_watts", board=True),
    _DEV + "ENFORCED_POWER_LIMIT": Field("gpu_power_limit_watts", board=True),
    _DEV + "TOTAL_ENERGY_CONSUMPTION": Field("gpu_energy_joules_total", 1e-3, board=True),
    _DEV + "GPU_TEMP": Field("gpu_temperature_celsius", board=True),
    _DEV + "GPU_TEMP_CELSIUS": Field("gpu_temperature_celsius", board=True),
    _DEV + "MEMORY_TEMP": Field("gpu_memory_temperature_celsius", board=True),
    _DEV + "XID_ERRORS": Field("gpu_xid_last_code", board=True),
    _DEV + "XID_ERROR": Field("gpu_xid_last_code", board=True),
    "DCGM_EXP_XID_ERRORS_COUNT": Field(XID_COUNT, board=True),
    "DCGM_EXP_CLOCK_EVENTS_COUNT": Field(CLOCK_EVENTS, board=True),
    _DEV + "ECC_SBE_VOL_TOTAL": Field("gpu_ecc_corrected_total", board=True),
    _DEV + "ECC_DBE_VOL_TOTAL": Field("gpu_ecc_uncorrected_total", board=True),
    _DEV + "CORRECTABLE_REMAPPED_ROWS": Field("gpu_remapped_rows_corrected", board=True),
    _DEV + "UNCORRECTABLE_REMAPPED_ROWS": Field("gpu_remapped_rows_uncorrected", board=True),
    _DEV + "ROW_REMAP_PENDING": Field("gpu_remap_pending", board=True),
    _DEV + "ROW_REMAP_FAILURE": Field("gpu_remap_failed", board=True),
    _DEV + "PCIE_REPLAY_COUNTER": Field("gpu_pcie_replay_total", board=True),
    _DEV + "PCIE_REPLAY_TOTAL": Field("gpu_pcie_replay_total", board=True),
    _DEV + "PCIE_LINK_GEN": Field("gpu_pcie_link_generation", board=True),
    _DEV + "PCIE_LINK_WIDTH": Field("gpu_pcie_link_width", board=True),
    _DEV + "CLOCK_THROTTLE_REASONS": Field(REASONS, board=True),
    _DEV + "CLOCKS_EVENT_REASONS": Field(REASONS, board=True),
    _DEV + "THERMAL_VIOLATION": Field(THERMAL_NS[0], board=True),
    _EVENT + "SW_THERM_SLOWDOWN_NS": Field(THERMAL_NS[1], board=True),
    _EVENT + "HW_THERM_SLOWDOWN_NS": Field(THERMAL_NS[2], board=True),
    _EVENT + "HW_POWER_BRAKE_SLOWDOWN_NS": Field(BRAKE_NS, board=True),
    _DEV + "POWER_VIOLATION": Field(POWER_NS, board=True),
    _EVENT + "SW_POWER_CAP_NS": Field(POWER_NS, board=True),
    _DEV + "SYNC_BOOST_VIOLATION": Field(SYNC_NS, board=True),
    _EVENT + "SYNC_BOOST_NS": Field(SYNC_NS, board=True),
}
"""dcgm-exporter."""

AMD: dict[str, Field] = {
    "gpu_gfx_activity": Field("gpu_gr_engine_active_ratio", 0.01),
    "gpu_umc_activity": Field("gpu_dram_active_ratio", 0.01),
    "gpu_used_vram": Field("gpu_memory_used_bytes", MIB),
    "gpu_total_vram": Field("gpu_memory_total_bytes", MIB),
    "gpu_package_power": Field("gpu_power_watts", board=True),
    "gpu_average_package_power": Field("gpu_power_watts", board=True),
    "gpu_power_usage": Field("gpu_power_watts", board=True),
    "gpu_energy_consumed": Field("gpu_energy_joules_total", 1e-6, board=True),
    "gpu_junction_temperature": Field("gpu_temperature_celsius", board=True),
    "gpu_edge_temperature": Field("gpu_temperature_celsius", board=True),
    "gpu_memory_temperature": Field("gpu_memory_temperature_celsius", board=True),
    "gpu_ecc_correct_total": Field("gpu_ecc_corrected_total", board=True),
    "gpu_ecc_uncorrect_total": Field("gpu_ecc_uncorrected_total", board=True),
    "pcie_replay_count": Field("gpu_pcie_replay_total", board=True),
}
"""AMD's device-metrics-exporter, where it means the same. Not verified on hardware."""

OURS = "gpuwatch_"
NODE: dict[str, Field] = {OURS + name: Field(name) for name in CATALOG if name.startswith("gpu_")} | {
    OURS + "gpu_owner": Field(OWNER),
    OURS + "gpu_read_timestamp_seconds": Field(READ_AT),
}
"""What an agent with the role *node* adds to dcgm-exporter's names: every signal in base units, and who is on a device."""

FIELDS: dict[str, Field] = {**DCGM, **AMD, **NODE}
NAMES = frozenset(FIELDS)


def is_blank(raw: float) -> bool:
    """True for DCGM's "no value" sentinels, whatever their width, and for NaN."""
    return raw != raw or (raw >= 1.4e14 and _is_sentinel(raw)) or 0x7FFFFFF0 <= raw <= 0x7FFFFFF3


def _is_sentinel(raw: float) -> bool:
    """Doubles from 140737488355328 (2^47) up to four above; 64-bit integers from 0x7ffffffffffffff0, as doubles."""
    return raw < 1.4073748835533e14 + 16 or raw >= 9.2e18
