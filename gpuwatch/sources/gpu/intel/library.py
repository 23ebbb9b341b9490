"""Level Zero Sysman: the devices of the loader, each with its engines, memories, clocks, sensors and power domains.

Activity, traffic, energy and throttling come as counters with their own time in microseconds: a rate is the growth of
one ÷ the growth of the other. Memory activity is traffic ÷ the peak that the device tells. Sysman has nothing like SM
activity or occupancy (Intel's metric streamer has, and wants more rights).
"""

from __future__ import annotations

import ctypes as c
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...growth import Growth
from ..nvml.facts import clean
from ..nvml.processes import GpuProcess
from ..vendor import Device, DeviceLostError, Values, VendorError
from . import structs as z
from .sysman import Sysman

SONAME = "libze_loader.so.1"
MEGA, MICRO = 1e6, 1e-6


def is_there() -> bool:
    """Whether Level Zero's loader can be loaded here."""
    try:
        c.CDLL(SONAME)
    except OSError:
        return False
    return True


def _load() -> Any:
    os.environ.setdefault("ZES_ENABLE_SYSMAN", "1")  # drivers before zesInit existed look here
    return c.CDLL(SONAME)


class IntelLibrary:
    """Starts Sysman and finds the devices. `load` loads the library."""

    def __init__(self, load: Callable[[], Any] = _load) -> None:
        self._load = load

    def open(self) -> list[Device]:
        """Raises VendorError."""
        try:
            sysman = Sysman(self._load())
        except OSError as error:
            raise VendorError(f"{SONAME} does not load: {error}"[:200]) from None
        if not sysman.call("zesInit", None, c.c_uint32(0)):
            raise VendorError("Level Zero Sysman does not start: no driver, or no permission")
        found: list[Device] = []
        for driver in sysman.handles("zesDriverGet", None):
            for handle in sysman.handles("zesDeviceGet", driver):
                try:
                    found.append(IntelDevice(sysman, handle, len(found)))
                except DeviceLostError:
                    continue  # the others are there
        return found

    def close(self) -> None:
        """Sysman has no end."""


class IntelDevice:
    """One device. What belongs to a tile only is added up where adding makes sense, and left out elsewhere."""

    def __init__(self, sysman: Sysman, handle: int, index: int) -> None:
        self._sysman = sysman
        self._handle = handle
        self._index = index
        self._properties = sysman.ask("zesDeviceGetProperties", handle, z.DeviceProperties)
        uuid = bytes(self._properties.core.uuid).hex() if self._properties is not None else ""
        self.uuid = f"intel-{uuid if uuid.strip('0') else index}"
        self._engines = self._kinds("zesDeviceEnumEngineGroups", "zesEngineGetProperties", z.EngineProperties)
        self._clocks = self._kinds("zesDeviceEnumFrequencyDomains", "zesFrequencyGetProperties", z.FrequencyProperties)
        self._sensors = self._kinds(
            "zesDeviceEnumTemperatureSensors", "zesTemperatureGetProperties", z.TemperatureProperties
        )
        self._memories = [
            memory
            for memory in sysman.handles("zesDeviceEnumMemoryModules", handle)
            if (told := sysman.ask("zesMemoryGetProperties", memory, z.MemoryProperties)) is None
            or told.location == z.ON_THE_DEVICE
        ]
        self._power = sysman.handles("zesDeviceEnumPowerDomains", handle)[:1]  # the first is the whole card
        self._growth: dict[tuple[str, int], Growth] = {}
        self.processes: tuple[GpuProcess, ...] = ()

    def facts(self) -> Mapping[str, str]:
        """What the device is."""
        told = self._properties
        found = {"index": str(self._index), "vendor": "Intel"}
        if told is not None:
            found["model"] = clean(told.core.name or told.model)
            found["driver"] = clean(told.driver)
        peaks = [told.peak for _, told in self._bandwidths() if told.peak]
        if peaks:
            found |= {"peak_dram_bytes_per_second": f"{sum(peaks):.4g}", "peak_dram_from": "device"}
        return {key: value for key, value in found.items() if value}

    def read(self, at: float, slow: bool) -> Values:
        """Readings of a lane. Raises DeviceLostError or VendorError."""
        found = self._slow() if slow else self._fast()
        return {signal: value for signal, value in found.items() if value == value}

    def _fast(self) -> Values:
        return self._activity() | self._memory() | self._clock() | self._heat() | self._energy()

    def _slow(self) -> Values:
        listed = self._sysman.processes(self._handle)
        if listed is None:
            return {}
        self.processes = tuple(GpuProcess(one.pid, float(one.memory)) for one in listed)
        return {"gpu_processes": float(len(listed))}

    def _activity(self) -> Values:
        shares: dict[int, float] = {}
        for handle, told in self._engines:
            if told.type not in (z.ENGINE_ALL, z.ENGINE_COMPUTE_ALL):
                continue
            share = self._rate("zesEngineGetActivity", handle)
            if share == share:
                shares[told.type] = max(shares.get(told.type, 0.0), share)
        compute = shares.get(z.ENGINE_COMPUTE_ALL, math.nan)
        return {"gpu_gr_engine_active_ratio": compute, "gpu_util_ratio": shares.get(z.ENGINE_ALL, compute)}

    def _memory(self) -> Values:
        states = [self._sysman.ask("zesMemoryGetState", memory, z.MemoryState) for memory in self._memories]
        told = [state for state in states if state is not None and state.size >= state.free]
        found: Values = {}
        if told:
            found["gpu_memory_total_bytes"] = float(sum(state.size for state in told))
            found["gpu_memory_used_bytes"] = float(sum(state.size - state.free for state in told))
        traffic, peak = 0.0, 0.0
        for memory, bandwidth in self._bandwidths():
            moved = self._growing("traffic", memory, bandwidth.read + bandwidth.written, bandwidth.at) / MICRO
            traffic, peak = traffic + moved, peak + bandwidth.peak
        if peak or traffic:
            found["gpu_dram_bytes_per_second"] = traffic
            found["gpu_dram_active_ratio"] = traffic / peak if peak else math.nan
        return found

    def _bandwidths(self) -> list[tuple[int, z.Bandwidth]]:
        asked = ((memory, self._sysman.ask("zesMemoryGetBandwidth", memory, z.Bandwidth)) for memory in self._memories)
        return [(memory, told) for memory, told in asked if told is not None]

    def _clock(self) -> Values:
        """Of tiles the slowest, which the others wait for."""
        found: Values = {}
        for handle, domain in self._clocks:
            state = self._sysman.ask("zesFrequencyGetState", handle, z.FrequencyState)
            if state is None or state.actual < 0:
                continue
            if domain.type == z.FREQUENCY_MEMORY:
                found["gpu_memory_clock_hertz"] = state.actual * MEGA
            elif domain.type == z.FREQUENCY_GPU:
                clock = state.actual * MEGA
                found["gpu_sm_clock_hertz"] = min(found.get("gpu_sm_clock_hertz", clock), clock)
                found["gpu_sm_clock_max_hertz"] = domain.max * MEGA
                for signal, share in self._throttled(handle, state.reasons).items():
                    found[signal] = max(found.get(signal, 0.0), share)
        return found

    def _throttled(self, handle: int, reasons: int) -> Values:
        """The reasons are a point sample; the time counter says how long, but not why. Without reasons it was the cap."""
        held = self._rate("zesFrequencyGetThrottleTime", handle)
        power, thermal = bool(reasons & z.POWER_CAUSES), bool(reasons & z.THERMAL_CAUSES)
        supply = bool(reasons & z.SUPPLY_CAUSES)
        share = held if held == held else float(bool(reasons))
        return {
            "gpu_throttled_power_ratio": share * power,
            "gpu_throttled_thermal_ratio": share * thermal,
            "gpu_throttled_brake_ratio": share * supply,
            "gpu_throttled_ratio": share * (thermal or supply),
        }

    def _heat(self) -> Values:
        found: Values = {}
        wanted = {
            z.TEMPERATURE_GPU: "gpu_temperature_celsius",
            z.TEMPERATURE_GLOBAL: "gpu_temperature_celsius",
            z.TEMPERATURE_MEMORY: "gpu_memory_temperature_celsius",
        }
        for handle, sensor in self._sensors:
            told = c.c_double(math.nan)
            signal = wanted.get(sensor.type)
            if signal and self._sysman.call("zesTemperatureGetState", handle, c.byref(told)):
                found[signal] = max(found.get(signal, -math.inf), told.value)
        return found

    def _energy(self) -> Values:
        for domain in self._power:
            told = self._sysman.ask("zesPowerGetEnergyCounter", domain, z.Counter)
            if told is not None:
                watts = self._growing("energy", domain, told.count, told.at)
                return {"gpu_energy_joules_total": told.count * MICRO, "gpu_power_watts": watts}
        return {}

    def _rate(self, call: str, handle: int) -> float:
        told = self._sysman.ask(call, handle, z.Counter)
        return math.nan if told is None else self._growing(call, handle, told.count, told.at)

    def _growing(self, what: str, handle: int, count: float, at_us: float) -> float:
        """Growth of a counter per microsecond of the device's own clock."""
        return self._growth.setdefault((what, handle), Growth()).per_second(float(count), float(at_us))

    def _kinds(self, enumerate_by: str, ask_by: str, kind: type[Any]) -> list[tuple[int, Any]]:
        """Handles of one kind of part, with their properties."""
        handles = self._sysman.handles(enumerate_by, self._handle)
        asked = ((handle, self._sysman.ask(ask_by, handle, kind)) for handle in handles)
        return [(handle, told) for handle, told in asked if told is not None]
