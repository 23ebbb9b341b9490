"""Histograms of what finished requests say of themselves, cumulative as a page would show them, in seconds."""

from __future__ import annotations

from bisect import bisect_left

from ....model import Histogram, Subject

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0, 25.0, 40.0,
    60.0, 100.0, 150.0, 250.0, 400.0, 600.0, 1000.0,
)  # fmt: skip


_BEFORE_S = 0.001


class _Counted:
    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0


class Distributions:
    """Takes observations; answers with the histograms that changed."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def add(self, engine: str, at: float, values: dict[str, float]) -> list[Histogram]:
        """Take one observation of each. A histogram's first comes with an empty one before it: it is an increase."""
        told: list[Histogram] = []
        for name, value in values.items():
            counted = self._counted.get(name)
            if counted is None:
                counted = self._counted[name] = _Counted()
                told.append(_histogram(engine, name, at - _BEFORE_S, counted))
            counted.buckets[bisect_left(BOUNDS, value)] += 1
            counted.sum += value
            told.append(_histogram(engine, name, at, counted))
        return told


def _histogram(engine: str, name: str, at: float, counted: _Counted) -> Histogram:
    cumulative, total = [], 0
    for n in counted.buckets:
        total += n
        cumulative.append(float(total))
    return Histogram(
        Subject(engine=engine), "log", name, at, BOUNDS, tuple(cumulative[:-1]), counted.sum, cumulative[-1]
    )
