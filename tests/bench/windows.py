"""A second of windows, and a second of all rules."""

from __future__ import annotations

import math
import statistics
from itertools import count

import numpy as np

from tests.bench.measure import by_turns
from tests.bench.row import Row

SIGNALS, HERTZ, SPAN_S = 100, 10, 60


def second_of_windows() -> Row:
    """One second of 100 signals at 10 Hz: write it, then mean, slope and P95 of the last minute, cycles of one."""
    from gpuwatch.memory.tiers import LAST, MEAN, Tier
    from gpuwatch.stats import drain_refill_cycles, slope

    names = tuple(f"s{i}" for i in range(SIGNALS))
    rng = np.random.default_rng(1)
    tier, kinds, seconds = Tier(), np.zeros(SIGNALS, bool), count(1_764_000_000)

    def write() -> int:
        second = next(seconds)
        at = second + np.arange(HERTZ) / HERTZ
        tier.write(names, at, rng.random((HERTZ, SIGNALS)), kinds)
        tier.advance(second + 1)
        return second + 1

    for _ in range(SPAN_S):
        write()

    def ours() -> None:
        now = write()
        for name in names:
            values = tier.span(name, now, SPAN_S, MEAN)
            float(values.mean()), slope(values), float(np.partition(values, 56)[56])
        running = tier.span("s0", now, SPAN_S, LAST)
        drain_refill_cycles(running, tier.span("s1", now, SPAN_S), np.ones(SPAN_S))

    kept = [[math.sin(i + s) for i in range(SPAN_S * HERTZ)] for s in range(SIGNALS)]
    x = [i / HERTZ for i in range(SPAN_S * HERTZ)]

    def naive() -> None:
        for values in kept:
            mean = statistics.fmean(values)
            sum((a - 30) * (v - mean) for a, v in zip(x, values, strict=True)) / sum((a - 30) ** 2 for a in x)
            sorted(values)[int(0.95 * len(values))]

    now, before = by_turns(ours, naive, rounds=9)
    return Row("ms a second", 0.5, now * 1e3, before * 1e3,
        note="writing a second, then mean, slope, P95 of each signal over 60 s; naive is lists of all 600 points",
    )  # fmt: skip
