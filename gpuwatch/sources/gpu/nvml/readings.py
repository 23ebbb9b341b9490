"""What is asked of a device, how often, and by which call: a table.

Three lanes. *Fast*: clocks, power, temperature, energy. *Usage*: utilisation, which the driver renews every 1/6–1 s only
and pays for with its lock, and memory. *Slow*: what changes by the minute. A question may have several ways, newest or
most exact first; a way that a device refuses is not tried again there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .fields import ALL_LINKS, KIB, Field, FieldReader, number
from .library import NOT_SUPPORTED, Library, NvmlError

Lane = Literal["fast", "usage", "slow"]
Values = dict[str, float]
Way = Callable[[Library, Any], Values]

MEGA, MILLI = 1e6, 1e-3
_MEMORY_V2 = 0x02000028
_SM, _MEM = 1, 2
_VOLATILE, _CORRECTED, _UNCORRECTED = 0, 0, 1


class Question(msgspec.Struct, frozen=True):
    """Something to be known. `of_instance`: a MIG instance can answer it, too."""

    what: str
    lane: Lane
    ways: tuple[Way, ...]
    of_instance: bool = False


def _one(call: str, signal: str, factor: float = 1.0, *arguments: int) -> Way:
    """A call that answers one number."""

    def read(library: Library, handle: Any) -> Values:
        return {signal: number(library.ask(call, handle, *arguments), factor)}

    return read


def _utilisation(library: Library, handle: Any) -> Values:
    rates = library.ask("nvmlDeviceGetUtilizationRates", handle)
    return {"gpu_util_ratio": number(rates.gpu, 0.01), "gpu_memory_busy_ratio": number(rates.memory, 0.01)}


def _memory_v2(library: Library, handle: Any) -> Values:
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
    return {
        "gpu_memory_used_bytes": number(memory.used),
        "gpu_memory_total_bytes": number(memory.total),
        "gpu_memory_reserved_bytes": number(memory.reserved),
    }


def _memory_v1(library: Library, handle: Any) -> Values:
    """`used` includes what the driver reserves; there is no telling how much that is."""
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    return {"gpu_memory_used_bytes": number(memory.used), "gpu_memory_total_bytes": number(memory.total)}


def _bar1(library: Library, handle: Any) -> Values:
    return {"gpu_bar1_used_bytes": number(library.ask("nvmlDeviceGetBAR1MemoryInfo", handle).bar1Used)}


def _rows(library: Library, handle: Any) -> Values:
    corrected, uncorrected, pending, failed = library.ask("nvmlDeviceGetRemappedRows", handle)
    return {
        "gpu_remapped_rows_corrected": number(corrected),
        "gpu_remapped_rows_uncorrected": number(uncorrected),
        "gpu_remap_pending": float(bool(pending)),
        "gpu_remap_failed": float(bool(failed)),
    }


def _retired_pages(library: Library, handle: Any) -> Values:
    """Before Ampere pages are retired, not rows replaced."""
    return {"gpu_remap_pending": float(bool(library.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)))}


def _field(field: int, signal: str, factor: float = 1.0) -> Way:
    """A single numbered field as the second way of a question."""

    def read(library: Library, handle: Any) -> Values:
        reader = FieldReader(library, (Field(field, signal, factor),))
        found = reader.read(handle, 0.0)
        if reader.refused:
            raise NvmlError(f"field {field}", NOT_SUPPORTED)
        return found

    return read


QUESTIONS: tuple[Question, ...] = (
    Question("SM clock", "fast", (_one("nvmlDeviceGetClockInfo", "gpu_sm_clock_hertz", MEGA, _SM),)),
    Question("power", "fast", (_one("nvmlDeviceGetPowerUsage", "gpu_power_watts", MILLI),)),
    Question("temperature", "fast", (
        _one("nvmlDeviceGetTemperature", "gpu_temperature_celsius", 1.0, 0),
        _one("nvmlDeviceGetTemperatureV", "gpu_temperature_celsius", 1.0, 0),
    )),
    Question("energy", "fast", (
        _one("nvmlDeviceGetTotalEnergyConsumption", "gpu_energy_joules_total", MILLI),
        _field(83, "gpu_energy_joules_total", MILLI),
    )),
    Question("utilisation", "usage", (_utilisation,)),
    Question("memory", "usage", (_memory_v2, _memory_v1), of_instance=True),
    Question("highest SM clock", "slow", (_one("nvmlDeviceGetMaxClockInfo", "gpu_sm_clock_max_hertz", MEGA, _SM),)),
    Question("memory clock", "slow", (_one("nvmlDeviceGetClockInfo", "gpu_memory_clock_hertz", MEGA, _MEM),)),
    Question("power limit", "slow", (_one("nvmlDeviceGetEnforcedPowerLimit", "gpu_power_limit_watts", MILLI),)),
    Question("BAR1", "slow", (_bar1,)),
    Question("corrected errors", "slow", (
        _one("nvmlDeviceGetTotalEccErrors", "gpu_ecc_corrected_total", 1.0, _CORRECTED, _VOLATILE),
        _field(3, "gpu_ecc_corrected_total"),
    )),
    Question("uncorrected errors", "slow", (
        _one("nvmlDeviceGetTotalEccErrors", "gpu_ecc_uncorrected_total", 1.0, _UNCORRECTED, _VOLATILE),
        _field(4, "gpu_ecc_uncorrected_total"),
    )),
    Question("replaced memory", "slow", (_rows, _retired_pages)),
    Question("PCIe generation", "slow", (
        _one("nvmlDeviceGetCurrPcieLinkGeneration", "gpu_pcie_link_generation"),
    )),
    Question("PCIe width", "slow", (_one("nvmlDeviceGetCurrPcieLinkWidth", "gpu_pcie_link_width"),)),
    Question("PCIe replays", "slow", (
        _one("nvmlDeviceGetPcieReplayCounter", "gpu_pcie_replay_total"),
        _field(94, "gpu_pcie_replay_total"),
    )),
)  # fmt: skip
"""Everything that is asked by a call of its own."""

NEWER = "newer:"
"""Mark of a field that newer links answer in the place of an older one."""

SLOW_FIELDS: tuple[Field, ...] = (
    Field(82, "gpu_memory_temperature_celsius"),
    Field(230, "gpu_recovery_action"),
    Field(197, "gpu_pcie_tx_bytes_per_second", rate=True),
    Field(198, "gpu_pcie_rx_bytes_per_second", rate=True),
    Field(138, "gpu_nvlink_tx_bytes_per_second", KIB, rate=True, scope=ALL_LINKS),
    Field(139, "gpu_nvlink_rx_bytes_per_second", KIB, rate=True, scope=ALL_LINKS),
    Field(202, NEWER + "gpu_nvlink_tx_bytes_per_second", rate=True, scope=ALL_LINKS),
    Field(204, NEWER + "gpu_nvlink_rx_bytes_per_second", rate=True, scope=ALL_LINKS),
)
"""What is asked as fields, in one call. PCIe throughput has a call of its own, which blocks for 20 ms: never used."""
