"""What a device is: name, architecture, driver, limits and peaks, as strings. Asked once; what it refuses is absent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import peaks
from .fields import number
from .library import CLOSED, GONE, Library, NvmlError

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_SM, _MEM = 1, 2
_SHUTDOWN, _SLOWDOWN = 0, 1
_TEXT = 120


def clean(text: object) -> str:
    """A driver's string: printable, and not longer than a label."""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return "".join(c if c.isprintable() else "\ufffd" for c in said)[:_TEXT].strip()


class Facts:
    """Asks one device. `of` is what it said; `refused` what it would not say, by call."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self.refused: dict[str, int] = {}

    def ask(self, call: str, *arguments: Any, of_system: bool = False) -> Any:
        """The answer, None where there is none. Raises NvmlError where the device or the driver is gone."""
        try:
            return self._library.ask(call, *(() if of_system else (self._handle,)), *arguments)
        except NvmlError as error:
            if error.code in GONE or error.code in CLOSED:
                raise
            self.refused[call] = error.code
            return None

    def _number(self, call: str, factor: float, *arguments: Any) -> float:
        raw = self.ask(call, *arguments)
        return math.nan if raw is None else number(raw, factor)

    def of(self) -> dict[str, str]:
        """Everything that the device says of itself. Numbers in base units."""
        name = clean(self.ask("nvmlDeviceGetName") or "")
        architecture = self.ask("nvmlDeviceGetArchitecture")
        pci = self.ask("nvmlDeviceGetPciInfo")
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        total = number(memory.total) if memory is not None else math.nan
        memory_clock = self._number("nvmlDeviceGetMaxClockInfo", 1e6, _MEM)
        bandwidth = peaks.told(self._number("nvmlDeviceGetMemoryBusWidth", 1.0), memory_clock)
        texts = {
            "model": name,
            "driver": clean(self.ask("nvmlSystemGetDriverVersion", of_system=True) or ""),
            "architecture": ARCHITECTURES.get(architecture, f"code {architecture}") if architecture else "",
            "pci_bus_id": clean(getattr(pci, "busId", "") or ""),
            "ecc": _mode(self.ask("nvmlDeviceGetEccMode")),
        }
        numbers: dict[str, Callable[[], float]] = {
            "memory_total_bytes": lambda: total,
            "sm_clock_max_hertz": lambda: self._number("nvmlDeviceGetMaxClockInfo", 1e6, _SM),
            "memory_clock_max_hertz": lambda: memory_clock,
            "memory_bus_bits": lambda: self._number("nvmlDeviceGetMemoryBusWidth", 1.0),
            "power_limit_watts": lambda: self._number("nvmlDeviceGetEnforcedPowerLimit", 1e-3),
            "temperature_slowdown_celsius": lambda: self._number("nvmlDeviceGetTemperatureThreshold", 1.0, _SLOWDOWN),
            "temperature_shutdown_celsius": lambda: self._number("nvmlDeviceGetTemperatureThreshold", 1.0, _SHUTDOWN),
            "pcie_generation_max": lambda: self._number("nvmlDeviceGetMaxPcieLinkGeneration", 1.0),
            "pcie_width_max": lambda: self._number("nvmlDeviceGetMaxPcieLinkWidth", 1.0),
        }
        said = {key: value for key, value in texts.items() if value}
        for key, ask in numbers.items():
            value = ask()
            if value == value:
                said[key] = f"{value:.10g}"
        return said | peaks.facts(name, total, bandwidth)


def _mode(mode: Any) -> str:
    """[current, pending] as a word."""
    if mode is None:
        return ""
    current, pending = mode
    words = ("off", "on")
    now, then = words[bool(current)], words[bool(pending)]
    return now if now == then else f"{now}, {then} after the next reset"
