"""Question 3: is the queue growing, standing or draining, how fast, and when is the objective gone?"""

from __future__ import annotations

import math

import numpy as np

from ..memory.view import Window
from ..model import Missing, QueueState
from ..stats import slope
from .demand import flow

SPAN_S = 30.0


def queue(w: Window) -> QueueState:
    """Trend over half a minute. `until_s`: seconds until the wait at the tail exceeds the TTFT objective; 0 once it does."""
    try:
        waiting = w.series("req_waiting", SPAN_S, thin=0.3)
    except Missing:
        return QueueState("unknown")
    level = float(np.nanmean(waiting[-5:])) if not np.isnan(waiting[-5:]).all() else math.nan
    if math.isnan(level):
        return QueueState("unknown")
    if level < 0.5 and float(np.nanmax(waiting)) < 1:
        return QueueState("empty", level, 0.0, None)
    rate = slope(waiting)
    if math.isnan(rate):
        return QueueState("standing", level, None, None)
    noise = max(0.05, 0.01 * level)
    trend = "growing" if rate > noise else "draining" if rate < -noise else "standing"
    until: float | None = None
    f = w.maybe(flow)
    if f is not None and f.completions_per_s > 0:
        room = w.slo.ttft_p95_s * f.completions_per_s - level
        until = 0.0 if room <= 0 else room / rate if rate > noise else None
    return QueueState(trend, level, rate, until)  # type: ignore[arg-type]


def began_at(w: Window) -> float:
    """When the present queue began: after the last five seconds in a row without a queue to speak of.

    "To speak of" is a tenth of its greatest length since. Refuses where no request waits.
    """
    waiting = w.series("req_waiting", 900.0, thin=0.01)
    peak = float(np.nanmax(waiting[-60:]))
    if peak < 1:
        raise Missing("req_waiting", "no queue")
    small = np.nan_to_num(waiting, nan=0.0) <= max(1.0, 0.1 * peak)
    run = 0
    for i in range(len(small) - 1, -1, -1):
        run = run + 1 if small[i] else 0
        if run >= 5:
            return math.floor(w.now) - len(small) + i + 5
    return math.floor(w.now) - len(small)
