"""What a GPU monitor would read between two polls of a simulated engine: per-step readings averaged over time.

Steps are integrated over the part of them that lies in the window, the step in progress with what the device shows
meanwhile, and the rest of the window as idle. Signals carry the catalogue's names (`gpu_…`) in base units; what the
model does not know, temperatures for one, is absent.
"""

from __future__ import annotations

import numpy as np

from ...devices.profiles import Device
from ...settings.engine import WORKSPACE_BYTES, EngineSettings

_AVERAGED = (
    "gr_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio",
    "power_watts", "sm_clock_hertz",
)  # fmt: skip


class DeviceWindow:
    """Integrates readings from one poll to the next. Times are clock seconds."""

    def __init__(self, device: Device, settings: EngineSettings, pool_tokens: int, start: float) -> None:
        self._device = device
        gpus = settings.tensor_parallel
        kv_bytes = pool_tokens * settings.kv_bytes_per_token
        self._held_bytes = (settings.shape.weight_bytes(settings.dtype) + kv_bytes) / gpus + WORKSPACE_BYTES
        self._since = start
        self._energy_joules = 0.0
        self._clear()

    def steps(self, begun_at: np.ndarray, ended_at: np.ndarray, readings: dict[str, np.ndarray]) -> None:
        """Add completed steps, each with its mean readings."""
        if not len(begun_at):
            return
        inside_s = np.maximum(ended_at - np.maximum(begun_at, self._since), 0.0)
        self._busy_s += float(inside_s.sum())
        self._integral += np.array([float(np.dot(readings[name], inside_s)) for name in _AVERAGED])

    def close(
        self,
        now: float,
        open_since: float | None,
        open_readings: dict[str, float],
        idle_readings: dict[str, float],
        *,
        up: bool,
    ) -> dict[str, float]:
        """The window's averages by signal, up to `now`; the next window begins there."""
        whole_s = now - self._since
        if open_since is not None:
            running_s = max(now - max(open_since, self._since), 0.0)
            self._busy_s += running_s
            self._integral += running_s * _row(open_readings)
        idle_s = max(whole_s - self._busy_s, 0.0)
        mean = (self._integral + idle_s * _row(idle_readings)) / whole_s if whole_s > 0 else _row(idle_readings)
        values = {f"gpu_{name}": float(value) for name, value in zip(_AVERAGED, mean, strict=True)}
        self._energy_joules += values["gpu_power_watts"] * whole_s
        device, held_bytes = self._device, self._held_bytes if up else 0.0
        values |= {
            "gpu_util_ratio": min(self._busy_s / whole_s, 1.0) if whole_s > 0 else 0.0,
            "gpu_dram_bytes_per_second": values["gpu_dram_active_ratio"] * device.bandwidth_bytes_per_s,
            "gpu_sm_clock_max_hertz": device.max_sm_clock_hz,
            "gpu_throttled_ratio": float(values["gpu_sm_clock_hertz"] < 0.999 * device.max_sm_clock_hz),
            "gpu_power_limit_watts": device.power_limit_watts,
            "gpu_energy_joules_total": self._energy_joules,
            "gpu_memory_used_bytes": held_bytes,
            "gpu_memory_free_bytes": max(device.memory_bytes - held_bytes, 0.0),
            "gpu_memory_total_bytes": device.memory_bytes,
            "gpu_xid_last_code": 0.0,
        }
        self._since = now
        self._clear()
        return values

    def _clear(self) -> None:
        self._busy_s = 0.0
        self._integral = np.zeros(len(_AVERAGED))


def _row(readings: dict[str, float]) -> np.ndarray:
    return np.array([readings[name] for name in _AVERAGED])
