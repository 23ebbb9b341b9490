"""Why a device runs slower than it could: the share of time, by cause.

From the driver's nanosecond counters where it has them: their growth is a true share of the interval. A cause without a
counter falls back to the mask of reasons at this moment, a point sample of 0 or 1. Thermal slowdowns of hardware and
software may overlap, so the greater of the two is what is sure. The power cap and group synchronisation are causes of
their own and no part of `gpu_throttled_ratio`: running at the power cap is how a busy device looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Field, FieldReader
from .library import REFUSALS, Library, NvmlError

_NS = 1e-9
POWER, SYNC, SW_THERMAL, HW_THERMAL, BRAKE = "power", "sync", "sw_thermal", "hw_thermal", "brake"
COUNTERS = (
    Field(74, POWER, _NS, rate=True),
    Field(76, SYNC, _NS, rate=True),
    Field(269, SW_THERMAL, _NS, rate=True),
    Field(270, HW_THERMAL, _NS, rate=True),
    Field(271, BRAKE, _NS, rate=True),
)
BITS = {POWER: 0x4, SYNC: 0x10, SW_THERMAL: 0x20, HW_THERMAL: 0x40, BRAKE: 0x80}
HW_SLOWDOWN = 0x8
"""Set together with the hardware's own causes; alone it is a slowdown that does not say why."""
MASKS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The mask by its new and its old name."""


class Throttling:
    """Follows one device."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._counters = FieldReader(library, COUNTERS)
        self._masks = list(MASKS)
        self.refused: dict[str, int] = {}

    @property
    def how(self) -> str:
        """Where the figures come from: counters, reasons (point samples), both, or nothing."""
        without = len(self._counters.refused)
        if not without:
            return "counters"
        if not self._masks:
            return "counters" if without < len(COUNTERS) else "none"
        return "reasons" if without == len(COUNTERS) else "counters and reasons"

    def read(self, handle: Any, at: float) -> dict[str, float]:
        """Ratios by signal. Raises NvmlError where the device does not answer at all."""
        shares = {cause: min(share, 1.0) for cause, share in self._counters.read(handle, at).items()}
        without = self._counters.refused
        if without and self._masks:
            mask = self._mask(handle)
            if mask is not None:
                shares |= {cause: float(bool(mask & BITS[cause])) for cause in without}
                if BRAKE in without and HW_THERMAL in without:
                    shares["unnamed"] = float(bool(mask & HW_SLOWDOWN))
        return _signals(shares)

    def _mask(self, handle: Any) -> int | None:
        while self._masks:
            try:
                return int(self._library.ask(self._masks[0], handle))
            except NvmlError as error:
                if error.code not in REFUSALS:
                    raise
                self.refused[self._masks.pop(0)] = error.code
        return None


def _signals(shares: Mapping[str, float]) -> dict[str, float]:
    thermal = [shares[cause] for cause in (SW_THERMAL, HW_THERMAL) if cause in shares]
    slowed = [*thermal, *(shares[cause] for cause in (BRAKE, "unnamed") if cause in shares)]
    found = {f"gpu_throttled_{cause}_ratio": shares[cause] for cause in (POWER, BRAKE, SYNC) if cause in shares}
    if thermal:
        found["gpu_throttled_thermal_ratio"] = max(thermal)
    if slowed:
        found["gpu_throttled_ratio"] = max(slowed)
    return found
