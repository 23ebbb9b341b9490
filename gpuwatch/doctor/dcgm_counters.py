"""The counters that dcgm-exporter should show: the file that makes it, and what each missing one blinds.

A counters file replaces the exporter's own list, and one field that it does not know makes it refuse the whole file. So only
names are used that DCGM 3 and 4 both know; newer ones follow as comments. `PROF` lines are skipped by the exporter on a
device that cannot serve them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..sources.gpu.dcgm.fields import DCGM, REASONS, THERMAL_NS


class Wanted(msgspec.Struct, frozen=True):
    """A signal that is worth having: the exporter's field for it, and what cannot be answered without it."""

    signal: str
    field: str
    blinds: str


WANTED = (
    Wanted(
        "gpu_sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE",
        "how the GPU is busy: compute-bound and spinning in a collective look like idle memory",
    ),
    Wanted("gpu_sm_occupancy_ratio", "DCGM_FI_PROF_SM_OCCUPANCY", "whether kernels fill the SMs or are small"),
    Wanted(
        "gpu_dram_active_ratio", "DCGM_FI_PROF_DRAM_ACTIVE", "how the GPU is busy: bandwidth-bound; engine_hang: a witness"
    ),
    Wanted(
        "gpu_tensor_active_ratio", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "how the GPU is busy: compute-bound"
    ),
    Wanted(
        "gpu_throttled_ratio", "DCGM_FI_DEV_THERMAL_VIOLATION",
        "gpu_throttling: whether, for how long and why the device is slowed down",
    ),
    Wanted("gpu_throttled_power_ratio", "DCGM_FI_DEV_POWER_VIOLATION", "whether the power cap holds the device down"),
    Wanted("gpu_ecc_uncorrected_total", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu_hardware_fault: memory errors"),
    Wanted("gpu_remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "gpu_hardware_fault: memory that waits for a reset"),
    Wanted("gpu_xid_last_code", "DCGM_FI_DEV_XID_ERRORS", "gpu_hardware_fault: the driver's error codes"),
    Wanted("gpu_power_limit_watts", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "how near the power cap is"),
    Wanted("gpu_energy_joules_total", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "whether a page was renewed while nothing moves"),
)  # fmt: skip

_COUNTERS = (
    ("Clocks", (
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
        ("DCGM_FI_DEV_MAX_SM_CLOCK", "gauge", "Highest SM clock frequency (in MHz)."),
        ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    )),
    ("Slowdowns: nanoseconds by cause, and the reasons of the moment", (
        ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Time slowed down by heat (in ns)."),
        ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Time held down by the power cap (in ns)."),
        ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "counter", "Time held down by group synchronisation (in ns)."),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Clock event reasons (bit mask)."),
    )),
    ("Temperature and power", (
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
        ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
        ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Enforced power limit (in W)."),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since driver load (in mJ)."),
    )),
    ("Memory", (
        ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
        ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
        ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
    )),
    ("Errors", (
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered."),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit memory errors since driver load."),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit memory errors since driver load."),
        ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for correctable errors."),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrectable errors."),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether a row waits for a reset to be remapped."),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed."),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe packets sent again."),
    )),
    ("Utilisation (says that a kernel ran, and nothing of health)", (
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    )),
    ("Activity: Volta and later, SYS_ADMIN, DCGM's profiling module", (
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active."),
        ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Ratio of cycles an SM has at least 1 warp assigned."),
        ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Ratio of warps resident on an SM."),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor pipe is active."),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the memory interface moves data."),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe bytes sent per second."),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe bytes received per second."),
        ("DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge", "NVLink bytes sent per second."),
        ("DCGM_FI_PROF_NVLINK_RX_BYTES", "gauge", "NVLink bytes received per second."),
    )),
    ("A label of every line", (("DCGM_FI_DRIVER_VERSION", "label", "Driver version."),)),
)  # fmt: skip
_NEWER = (
    ("exporter 3.4 and later", "DCGM_EXP_XID_ERRORS_COUNT", "counter", "XID errors within a time window."),
    ("DCGM 4.5 and later", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "counter", "Time braked (in ns)."),
)  # fmt: skip
_HEAD = """\
# Counters for dcgm-exporter: everything that gpuwatch reads, and nothing else. Written by `gpuwatch doctor --print-counters`.
# Use:  dcgm-exporter -f /etc/dcgm-exporter/gpuwatch.csv --collect-interval=1000
# This file REPLACES the exporter's own list: add what your dashboards need. One unknown field and the exporter refuses it all.
"""


def csv() -> str:
    """The counters file."""
    parts = [_HEAD]
    for about, fields in _COUNTERS:
        parts.append(f"\n# {about}\n" + "".join(f"{name}, {kind}, {text}\n" for name, kind, text in fields))
    parts += [f"\n# {since}: remove the mark\n# {name}, {kind}, {text}\n" for since, name, kind, text in _NEWER]
    return "".join(parts)


def fields() -> tuple[str, ...]:
    """The fields of that file, labels aside."""
    return tuple(name for _, group in _COUNTERS for name, kind, _ in group if kind != "label")


def missing(names: Iterable[str]) -> list[Wanted]:
    """What a page with these sample names does not tell, whatever generation its names are of."""
    told = {DCGM[name].signal for name in names if name in DCGM}
    if told & {*THERMAL_NS, REASONS}:
        told.add("gpu_throttled_ratio")
    if "throttled_power_ns" in told:
        told.add("gpu_throttled_power_ratio")
    return [wanted for wanted in WANTED if wanted.signal not in told]
