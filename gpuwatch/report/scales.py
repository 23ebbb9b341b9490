"""Axes: ticks at round numbers and round times, and decimation that keeps every peak.

A plot has about 300 columns on any screen, so a column is drawn as its lowest and its highest value in the order in
which they came: 1,800 points and 18,000 look the same and cost the same.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from ..model import Floats

_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def value_ticks(high: float, unit: str = "", count: int = 4) -> tuple[float, ...]:
    """Round values from 0 to at least `high`, about `count` of them: steps of 1, 2, 2.5 or 5 times a power of ten.

    Durations of more than a minute and a half step by round times instead.
    """
    if not math.isfinite(high) or high <= 0:
        return (0.0, 1.0)
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if power * m >= raw * 0.999)
    if unit == "seconds" and 90 < high < 4 * _TIME_STEPS_S[-1]:
        step = float(next(s for s in _TIME_STEPS_S if s >= raw * 0.999))
    return tuple(i * step for i in range(math.ceil(high / step - 1e-9) + 1))


def time_ticks(from_at: float, until_at: float, count: int = 8) -> tuple[tuple[float, str], ...]:
    """Round times inside [from_at, until_at] with their labels, HH:MM or HH:MM:SS in UTC."""
    span_s = max(until_at - from_at, 1.0)
    step_s = next((s for s in _TIME_STEPS_S if span_s / s <= count), math.ceil(span_s / count / 86400) * 86400)
    pattern = "%H:%M:%S" if step_s % 60 else "%H:%M"
    first = math.ceil(from_at / step_s) * step_s
    times = [first + i * step_s for i in range(int((until_at - first) // step_s) + 1)]
    return tuple((float(t), datetime.fromtimestamp(t, UTC).strftime(pattern)) for t in times)


def decimate(at: Floats, values: Floats, columns: int = 300) -> tuple[Floats, Floats]:
    """At most about two points a column: the lowest and the highest of each, in time order. NaN keeps its gap.

    Returns the inputs themselves when they are short enough already.
    """
    if len(at) <= 2 * columns:
        return at, values
    edges = np.linspace(0, len(at), columns + 1).astype(int)
    keep: list[int] = []
    for start, stop in pairwise(edges.tolist()):
        chunk = values[start:stop]
        known = np.flatnonzero(~np.isnan(chunk))
        if len(known) == 0:
            keep.append(start)
            continue
        picks = {int(known[np.argmin(chunk[known])]), int(known[np.argmax(chunk[known])])}
        if len(known) < len(chunk):  # a hole inside the column stays visible
            picks.add(int(np.flatnonzero(np.isnan(chunk))[0]))
        keep.extend(start + p for p in sorted(picks))
    return at[keep], values[keep]
