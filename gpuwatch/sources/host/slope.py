"""How fast something grows over hours: a line through one reading each half minute, unknown for the first ten minutes."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

_EVERY_S = 30.0
_KEEP = 720  # six hours
_SHORTEST_S = 600.0


class Slope:
    """Units per second, by least squares over up to six hours. Times are unix seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_KEEP)
        self._slope = math.nan

    def add(self, value: float, at: float) -> float:
        """Take a reading and say the slope as far as it is known."""
        if value == value and (not self._points or at - self._points[-1][0] >= _EVERY_S):
            self._points.append((at, value))
            self._slope = self._fit()
        return self._slope

    def clear(self) -> None:
        """Begin anew: other processes are looked at now."""
        self._points.clear()
        self._slope = math.nan

    def _fit(self) -> float:
        if self._points[-1][0] - self._points[0][0] < _SHORTEST_S:
            return math.nan
        times, values = np.array(self._points).T
        times = times - times.mean()
        return float((times * (values - values.mean())).sum() / (times * times).sum())
