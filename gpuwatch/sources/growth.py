"""A counter of a driver as a rate: its growth between two looks, whatever happened to it meanwhile."""

from __future__ import annotations

import math


class Growth:
    """A counter's growth per second between two looks; NaN at the first, after a fall and without time between."""

    __slots__ = ("_at", "_value")

    def __init__(self) -> None:
        self._value = math.nan
        self._at = math.nan

    def per_second(self, value: float, at: float) -> float:
        """Take the counter at `at` (unix seconds)."""
        grown, took_s = value - self._value, at - self._at
        self._value, self._at = value, at
        return grown / took_s if grown >= 0 and took_s > 0 else math.nan
