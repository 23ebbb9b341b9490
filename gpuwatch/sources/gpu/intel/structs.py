"""Level Zero Sysman's structs and numbers, as far as they are used (zes_api.h, version 1.3 and later)."""

from __future__ import annotations

import ctypes as c
from typing import Any

DEVICE_LOST, NEEDS_RESET, UNINITIALIZED = 0x70000001, 0x70000006, 0x78000001
NO_PERMISSION, NOT_AVAILABLE, UNSUPPORTED_VERSION, UNSUPPORTED = 0x70010000, 0x70020000, 0x78000002, 0x78000003

ENGINE_ALL, ENGINE_COMPUTE_ALL = 0, 1
FREQUENCY_GPU, FREQUENCY_MEMORY = 0, 1
TEMPERATURE_GLOBAL, TEMPERATURE_GPU, TEMPERATURE_MEMORY = 0, 1, 2
ON_THE_DEVICE = 1
POWER_CAUSES, THERMAL_CAUSES, SUPPLY_CAUSES = 0x1 | 0x2 | 0x200, 0x8 | 0x100, 0x4 | 0x10
"""Throttle reasons: average, burst and (later) any power cap; thermal limits; current limit and supply alert."""

_HEAD: list[tuple[str, Any]] = [("stype", c.c_int32), ("next", c.c_void_p)]
"""Every struct with properties or a state begins like this; `stype` must be set before the call."""


class _Core(c.Structure):
    """ze_device_properties_t."""

    _fields_ = [
        *_HEAD, ("type", c.c_int32), ("vendor", c.c_uint32), ("device", c.c_uint32), ("flags", c.c_uint32),
        ("subdevice", c.c_uint32), ("clock", c.c_uint32), ("largest", c.c_uint64), ("shape", c.c_uint32 * 7),
        ("timer", c.c_uint64), ("bits", c.c_uint32 * 2), ("uuid", c.c_ubyte * 16), ("name", c.c_char * 256),
    ]  # fmt: skip


class DeviceProperties(c.Structure):
    """zes_device_properties_t."""

    STYPE = 0x1
    _fields_ = [
        *_HEAD, ("core", _Core), ("subdevices", c.c_uint32), ("serial", c.c_char * 64), ("board", c.c_char * 64),
        ("brand", c.c_char * 64), ("model", c.c_char * 64), ("vendor", c.c_char * 64), ("driver", c.c_char * 64),
    ]  # fmt: skip


class EngineProperties(c.Structure):
    """zes_engine_properties_t."""

    STYPE = 0x5
    _fields_ = [*_HEAD, ("type", c.c_int32), ("on_subdevice", c.c_uint8), ("subdevice", c.c_uint32)]


class FrequencyProperties(c.Structure):
    """zes_freq_properties_t. Frequencies in MHz."""

    STYPE = 0x9
    _fields_ = [
        *_HEAD, ("type", c.c_int32), ("on_subdevice", c.c_uint8), ("subdevice", c.c_uint32), ("can_control", c.c_uint8),
        ("tells_events", c.c_uint8), ("min", c.c_double), ("max", c.c_double),
    ]  # fmt: skip


class FrequencyState(c.Structure):
    """zes_freq_state_t. Frequencies in MHz, negative where not known."""

    STYPE = 0x1B
    _fields_ = [
        *_HEAD, ("voltage", c.c_double), ("request", c.c_double), ("tdp", c.c_double), ("efficient", c.c_double),
        ("actual", c.c_double), ("reasons", c.c_uint32),
    ]  # fmt: skip


class MemoryProperties(c.Structure):
    """zes_mem_properties_t."""

    STYPE = 0xB
    _fields_ = [
        *_HEAD, ("type", c.c_int32), ("on_subdevice", c.c_uint8), ("subdevice", c.c_uint32), ("location", c.c_int32),
        ("size", c.c_uint64), ("bus_width", c.c_int32), ("channels", c.c_int32),
    ]  # fmt: skip


class MemoryState(c.Structure):
    """zes_mem_state_t. Bytes."""

    STYPE = 0x1E
    _fields_ = [*_HEAD, ("health", c.c_int32), ("free", c.c_uint64), ("size", c.c_uint64)]


class TemperatureProperties(c.Structure):
    """zes_temp_properties_t."""

    STYPE = 0x14
    _fields_ = [
        *_HEAD, ("type", c.c_int32), ("on_subdevice", c.c_uint8), ("subdevice", c.c_uint32), ("max", c.c_double),
        ("critical", c.c_uint8), ("threshold1", c.c_uint8), ("threshold2", c.c_uint8),
    ]  # fmt: skip


class ProcessState(c.Structure):
    """zes_process_state_t. Bytes."""

    STYPE = 0x16
    _fields_ = [
        *_HEAD, ("pid", c.c_uint32), ("memory", c.c_uint64), ("shared", c.c_uint64), ("engines", c.c_uint32),
    ]  # fmt: skip


class Counter(c.Structure):
    """zes_engine_stats_t (µs), zes_power_energy_counter_t (µJ), zes_freq_throttle_time_t (µs): a counter, and when (µs)."""

    _fields_ = [("count", c.c_uint64), ("at", c.c_uint64)]


class Bandwidth(c.Structure):
    """zes_mem_bandwidth_t. Counters in bytes, the peak in bytes/s, time in µs."""

    _fields_ = [("read", c.c_uint64), ("written", c.c_uint64), ("peak", c.c_uint64), ("at", c.c_uint64)]
