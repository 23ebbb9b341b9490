"""Shares of time that an AMD device was held down, from amdsmi's violation status.

Its counters tick in samples (`acc_counter` counts all of them), so a share is the growth of a cause ÷ the growth of all.
Without counters its own percentages serve, without those what is active at this moment.
"""

from __future__ import annotations

import math
from typing import Any

from .calls import POWER, THERMAL, number


class Violations:
    """Follows one device."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def shares(self, answer: Any) -> dict[str, float]:
        """Ratios by signal from one answer."""
        counters = {cause: number(answer, f"acc_{cause}") for cause in (POWER, *THERMAL)}
        samples = number(answer, "acc_counter")
        passed = samples - self._before.get("", math.nan)
        found: dict[str, float] = {}
        for cause, counter in counters.items():
            grown = counter - self._before.get(cause, math.nan)
            if passed > 0 and grown >= 0:
                found[cause] = min(grown / passed, 1.0)
            elif counter != counter or samples != samples:
                found[cause] = _told(answer, cause)
        self._before = {"": samples} | counters
        known = {cause: share for cause, share in found.items() if share == share}
        thermal = [known[cause] for cause in THERMAL if cause in known]
        signals: dict[str, float] = {}
        if POWER in known:
            signals["gpu_throttled_power_ratio"] = known[POWER]
        if thermal:
            signals["gpu_throttled_thermal_ratio"] = signals["gpu_throttled_ratio"] = max(thermal)
        return signals


def _told(answer: Any, cause: str) -> float:
    percent = number(answer, f"per_{cause}")
    return percent * 0.01 if percent == percent else number(answer, f"active_{cause}")
