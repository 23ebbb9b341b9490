"""`/gpu/metrics`: this machine's devices for the agents beside its engines, under dcgm-exporter's names where it has one.

Labels are that exporter's too, so that whatever reads it reads this; signals that it has no name for follow in base units
as `gpuwatch_<signal>`. A device with one holder says so on each row; every holder has a `gpuwatch_gpu_owner` row. What is
not known is left out. Label values come from outside and are escaped and cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..sources.gpu.ownership.holder import Holder

MIB = 1024.0 * 1024.0
_LABEL_CHARS = 256


class DeviceView(msgspec.Struct, frozen=True):
    """One device or MIG instance (`key`): what it is, its readings by signal, who holds it."""

    key: str
    facts: Mapping[str, str]
    levels: Mapping[str, float]
    holders: tuple[Holder, ...] = ()


_DCGM = {
    "gpu_sm_clock_hertz": ("DCGM_FI_DEV_SM_CLOCK", 1e-6, "SM clock frequency (in MHz)."),
    "gpu_memory_clock_hertz": ("DCGM_FI_DEV_MEM_CLOCK", 1e-6, "Memory clock frequency (in MHz)."),
    "gpu_memory_temperature_celsius": ("DCGM_FI_DEV_MEMORY_TEMP", 1, "Memory temperature (in C)."),
    "gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", 1, "GPU temperature (in C)."),
    "gpu_power_watts": ("DCGM_FI_DEV_POWER_USAGE", 1, "Power draw (in W)."),
    "gpu_power_limit_watts": ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1, "Enforced power limit (in W)."),
    "gpu_energy_joules_total": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3, "Energy since driver load (in mJ)."),
    "gpu_util_ratio": ("DCGM_FI_DEV_GPU_UTIL", 100, "GPU utilization (in %)."),
    "gpu_memory_busy_ratio": ("DCGM_FI_DEV_MEM_COPY_UTIL", 100, "Memory utilization (in %)."),
    "gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", 1 / MIB, "Framebuffer memory used (in MiB)."),
    "gpu_memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", 1 / MIB, "Framebuffer memory (in MiB)."),
    "gpu_memory_reserved_bytes": ("DCGM_FI_DEV_FB_RESERVED", 1 / MIB, "Framebuffer memory reserved (in MiB)."),
    "gpu_xid_last_code": ("DCGM_FI_DEV_XID_ERRORS", 1, "Value of the last XID error encountered."),
    "gpu_gr_engine_active_ratio": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1, "Ratio of time the graphics engine is active."),
    "gpu_sm_active_ratio": ("DCGM_FI_PROF_SM_ACTIVE", 1, "Ratio of cycles an SM has at least 1 warp."),
    "gpu_sm_occupancy_ratio": ("DCGM_FI_PROF_SM_OCCUPANCY", 1, "Ratio of warps resident on an SM."),
    "gpu_tensor_active_ratio": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1, "Ratio of cycles the tensor pipe is active."),
    "gpu_dram_active_ratio": ("DCGM_FI_PROF_DRAM_ACTIVE", 1, "Ratio of cycles the memory interface moves data."),
    "gpu_pcie_tx_bytes_per_second": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1, "PCIe bytes sent per second."),
    "gpu_pcie_rx_bytes_per_second": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1, "PCIe bytes received per second."),
    "gpu_nvlink_tx_bytes_per_second": ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1, "NVLink bytes sent per second."),
    "gpu_nvlink_rx_bytes_per_second": ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1, "NVLink bytes received per second."),
}
"""Signal → dcgm-exporter's name, what to multiply by, and what it says of itself."""
_LABELS = {
    "device": "device", "pci_bus_id": "pci_bus_id", "model": "modelName", "mig_profile": "GPU_I_PROFILE",
    "mig_uuid": "mig_uuid", "node": "Hostname", "driver": "DCGM_FI_DRIVER_VERSION",
}  # fmt: skip


def render(devices: Iterable[DeviceView], host: str, at: float) -> str:
    """The page as of `at`, the unix second that was judged last."""
    from ..catalog import CATALOG

    rows: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, kind: str, about: str, labels: str, value: float) -> None:
        rows.setdefault(name, (kind, about, []))[2].append(f"{name}{{{labels}}} {value:.15g}")

    for device in devices:
        who = _who(device, host)
        named = [_holder(holder) for holder in device.holders]
        labels = _pairs(who | (named[0] if len(named) == 1 else {}))
        for signal, value in device.levels.items():
            if value != value:
                continue
            entry = CATALOG[signal]
            ours = (f"gpuwatch_{signal}", 1.0, f"{entry.help} ({entry.unit})")
            name, factor, about = _DCGM.get(signal, ours)
            add(name, entry.kind, about, labels, value * factor)
        if device.levels:
            about = "The second that the readings are of"
            add("gpuwatch_gpu_read_timestamp_seconds", "gauge", about, _pairs(who), at)
        for holder in named:
            add("gpuwatch_gpu_owner", "gauge", "1 for each workload on a device", _pairs(who | holder), 1)
    lines: list[str] = []
    for name, (kind, about, series) in sorted(rows.items()):
        lines += (f"# HELP {name} {about}", f"# TYPE {name} {kind}", *series)
    return "\n".join(lines) + "\n"


def _who(device: DeviceView, host: str) -> dict[str, str]:
    uuid, _, instance = device.key.partition("/")
    labels = {"gpu": device.facts.get("index", ""), "UUID": uuid, "GPU_I_ID": instance}
    labels |= {theirs: device.facts.get(ours, "") for ours, theirs in _LABELS.items()}
    labels["Hostname"] = labels["Hostname"] or host
    return labels


def _holder(holder: Holder) -> dict[str, str]:
    return {
        "container": holder.container, "namespace": holder.namespace, "pod": holder.pod, "pod_uid": holder.pod_uid
    }  # fmt: skip


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items() if value)


def _escaped(value: str) -> str:
    return value[:_LABEL_CHARS].replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
