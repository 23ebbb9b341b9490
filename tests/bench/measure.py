"""Measuring by turns: A B A B …, CPU time of this process, medians. What disturbs one disturbs the other too."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

SHORTEST_S = 0.005
"""A turn repeats its call until it takes about this long, so that the timer's grain does not show."""


def by_turns(*calls: Callable[[], object], rounds: int = 15) -> list[float]:
    """Median CPU seconds of one call of each, measured in interleaved turns."""
    repeats = [_repeats(call) for call in calls]
    seconds: list[list[float]] = [[] for _ in calls]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for call, times, row in zip(calls, repeats, seconds, strict=True):
                row.append(_turn(call, times) / times)
    finally:
        gc.enable()
    return [statistics.median(row) for row in seconds]


def _repeats(call: Callable[[], object]) -> int:
    call()
    once = max(_turn(call, 1), 1e-7)
    return max(1, round(SHORTEST_S / once))


def _turn(call: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - begun
