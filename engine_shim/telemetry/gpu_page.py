"""The modelled device's readings as a dcgm-exporter page, with its names, units and habits.

Units as the exporter prints them: MHz, W, mJ, MiB, percent for GPU_UTIL, ratios 0–1 for the PROF fields. `stock` is
what the exporter shows by default (no SM_ACTIVE, no SM_OCCUPANCY, no throttle counters), renewed every 30 s; `full`
adds the profiling fields and is renewed at each reading. Values are those of the last reading, not a mean since then.
What the model does not know (temperatures, link traffic) is absent.
"""

from __future__ import annotations

from dataclasses import dataclass

from .exposition import pairs

MIB = 1024 * 1024
STOCK_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """What identifies a device and does not move."""

    uuid: str
    product: str
    index: int = 0
    hostname: str = "shim"
    pci_bus_id: str = "00000000:18:00.0"
    driver: str = "580.65.06"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    help: str
    signal: str
    scale: float
    whole: bool  # printed as an integer, else with six decimals
    stock: bool


_FIELDS = (
    _Field("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "gpu_sm_clock_hertz", 1e-6, True, True),
    _Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", "gpu_power_watts", 1, False, True),
    _Field(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).",
        "gpu_energy_joules_total", 1e3, True, True,
    ),
    _Field("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "gpu_util_ratio", 100, True, True),
    _Field(
        "DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.",
        "gpu_xid_last_code", 1, True, True,
    ),
    _Field(
        "DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).",
        "gpu_memory_free_bytes", 1 / MIB, True, True,
    ),
    _Field(
        "DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).",
        "gpu_memory_used_bytes", 1 / MIB, True, True,
    ),
    _Field(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
        "gpu_gr_engine_active_ratio", 1, False, True,
    ),
    _Field(
        "DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.",
        "gpu_sm_active_ratio", 1, False, False,
    ),
    _Field(
        "DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "The ratio of number of warps resident on an SM.",
        "gpu_sm_occupancy_ratio", 1, False, False,
    ),
    _Field(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.",
        "gpu_tensor_active_ratio", 1, False, True,
    ),
    _Field(
        "DCGM_FI_PROF_DRAM_ACTIVE", "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        "gpu_dram_active_ratio", 1, False, True,
    ),
)  # fmt: skip


class GpuPage:
    """Renders readings (catalogue names, base units) as the exporter would have them at that time."""

    def __init__(self, gpu: Gpu, *, counters: str = "full") -> None:
        if counters not in ("full", "stock"):
            raise ValueError(f"counters must be full or stock, got {counters!r}")
        stock = counters == "stock"
        self._every_s = STOCK_EVERY_S if stock else 0.0
        self._fields = [f for f in _FIELDS if f.stock or not stock]
        labels = {
            "gpu": str(gpu.index),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "device": f"nvidia{gpu.index}",
            "modelName": gpu.product,
            "Hostname": gpu.hostname,
            "DCGM_FI_DRIVER_VERSION": gpu.driver,
        }
        self._labels = pairs(labels)
        self._page = b""
        self._due = float("-inf")

    def update(self, now: float, readings: dict[str, float]) -> None:
        """A new reading; it reaches the page when the exporter would renew it."""
        if now < self._due:
            return
        self._due = now + self._every_s
        lines = []
        for field in self._fields:
            value = readings.get(field.signal)
            if value is None or value != value:
                continue
            shown = f"{value * field.scale:.0f}" if field.whole else f"{value * field.scale:.6f}"
            lines.append(f"# HELP {field.name} {field.help}\n# TYPE {field.name} {field.kind}")
            lines.append(f"{field.name}{{{self._labels}}} {shown}")
        self._page = ("\n".join(lines) + "\n").encode() if lines else b""

    def render(self) -> bytes:
        """The page as it stands; empty before the first reading."""
        return self._page
