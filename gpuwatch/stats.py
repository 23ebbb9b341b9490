"""The mathematics of the questions, as pure functions of arrays. No time, no state, no signal names."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .model import Floats


def slope(values: Floats, cell_s: float = 1.0) -> float:
    """Least-squares slope per second of equidistant values; NaN cells are left out; NaN below 3 points."""
    known = ~np.isnan(values)
    n = int(known.sum())
    if n < 3:
        return math.nan
    x = np.flatnonzero(known) * cell_s
    y = values[known]
    dx = x - x.mean()
    return float((dx * (y - y.mean())).sum() / (dx * dx).sum())


class Cycle(NamedTuple):
    """One drain–refill cycle, as indices of the series: last high cell, lowest cell, cell that is high again."""

    fell: int
    trough: int
    refilled: int
    swing_ratio: float


def drain_refill_cycles(
    running: Floats,
    waiting: Floats,
    reference: Floats,
    high_ratio: float = 0.7,
    low_ratio: float = 0.45,
    queued_cells: int = 3,
) -> tuple[list[Cycle], int]:
    """Cycles of the running set: at least `high_ratio` of the reference, then at most `low_ratio` of it while requests
    wait, then back.

    `reference[i]` is the usual size of the full batch at cell i (a trailing 60 s P90). A drain counts once requests have
    waited for `queued_cells` cells in a row, the last of them low; it begins with the first of those, or with the last
    high cell where requests have waited since long before. Returns the completed cycles and the index at which a drain
    that is still going on began (−1 when none is).
    """
    drained = running <= low_ratio * reference
    if not (drained & (waiting > 0)).any():
        return [], -1
    place = np.flatnonzero(~np.isnan(running) & (reference >= 4))  # a set of fewer than four has no batch to lose
    r, drained, order = running[place], drained[place], np.arange(len(place))
    queued = order - np.maximum.accumulate(np.where(waiting[place] > 0, -1, order))  # cells in a row with a queue
    starts = np.flatnonzero(drained & (queued >= queued_cells)).tolist()
    highs = np.flatnonzero(r >= high_ratio * reference[place])
    cycles: list[Cycle] = []
    done = -1  # the cell in which the last cycle ended
    for start in starts:
        before = int(np.searchsorted(highs, start))
        if start <= done or before == 0:
            continue
        fell = max(int(place[highs[before - 1]]), int(place[start] - queued[start]) + 1)
        if before == len(highs):
            return cycles, fell
        done = int(highs[before])
        trough = start + int(np.argmin(r[start : done + 1]))
        full = float(reference[place[done]])
        cycles.append(Cycle(fell, int(place[trough]), int(place[done]), 1 - float(r[trough]) / full))
    return cycles, -1


def quantile_of_known(values: Floats, q: float) -> float:
    """The q-quantile of what is known, between two values by their distance; NaN where nothing is known."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return math.nan
    place = q * (len(known) - 1)
    below = math.floor(place)
    above = min(below + 1, len(known) - 1)
    return float(known[below] + (known[above] - known[below]) * (place - below))


def trailing_quantile(values: Floats, window: int, q: float) -> Floats:
    """The q-quantile of the last `window` values at each index (fewer at the start); NaN where nothing is known."""
    if not len(values):
        return np.zeros(0)
    padded = np.concatenate((np.full(window - 1, math.nan), values))
    held = np.sort(sliding_window_view(padded, window), axis=1)  # NaN last
    known = window - np.isnan(held).sum(axis=1)
    place = np.minimum(known - 1, (q * known).astype(np.intp))
    out: Floats = held[np.arange(len(values)), np.maximum(place, 0)]  # all NaN where nothing is known
    return out


class Period(NamedTuple):
    """A regular oscillation: its period in cells, the autocorrelation's peak, Thornhill's regularity."""

    cells: float
    peak: float
    regularity: float


def period(values: Floats) -> Period | None:
    """The period of a series where its autocorrelation crosses zero regularly; None below 4 samples a cycle.

    Regularity r = mean(Δ) ÷ (3 · std(Δ)) over the intervals between zero crossings of the autocorrelation function;
    r > 1 is regular (Thornhill & Hägglund 1997). Needs two full periods inside half the series.
    """
    x = np.where(np.isnan(values), np.nanmean(values) if not np.isnan(values).all() else 0.0, values)
    n = len(x)
    if n < 16:
        return None
    t = np.arange(n) - (n - 1) / 2
    x = x - x.mean()
    x = x - t * float((t * x).sum() / (t * t).sum())
    power = float((x * x).sum())
    if power <= 1e-12:
        return None
    spectrum = np.fft.rfft(x, 2 * n)
    acf = np.fft.irfft(spectrum * np.conj(spectrum))[: n // 2] / power
    acf *= n / (n - np.arange(n // 2))
    crossings = np.flatnonzero((acf[1:] <= 0) != (acf[:-1] <= 0))
    if len(crossings) < 4:
        return None
    fine = crossings + acf[crossings] / (acf[crossings] - acf[crossings + 1])
    gaps = np.diff(fine)
    spread = float(gaps.std())
    regularity = math.inf if spread == 0 else float(gaps.mean() / (3 * spread))
    cells = 2 * float(gaps.mean())
    if cells < 4:
        return None
    around = acf[max(1, int(0.75 * cells)) : int(1.25 * cells) + 2]
    return Period(cells, float(around.max()) if len(around) else 0.0, regularity)


class RateChange(NamedTuple):
    """A change of an event rate: at which cell, the rates before and after, and how sure (log-likelihood ratio)."""

    cell: int
    before: float
    after: float
    llr: float


def rate_change(counts: Floats, min_cells: int = 10, min_before: int = 20) -> RateChange | None:
    """The most likely single change of a Poisson rate in counts per cell (NaN cells are left out).

    Compares every split with at least `min_before` cells before and `min_cells` after. None where it is too short.
    """
    known = ~np.isnan(counts)
    where = np.flatnonzero(known)
    c = counts[known]
    n = len(c)
    if n < min_before + min_cells:
        return None
    total = np.cumsum(c)
    k = np.arange(min_before, n - min_cells + 1)
    before, after = total[k - 1], total[-1] - total[k - 1]
    rate_b, rate_a, rate = before / k, after / (n - k), total[-1] / n

    def term(events: Floats, r: Floats | float) -> Floats:
        return np.where(events > 0, events * np.log(np.maximum(r, 1e-12)), 0.0)

    llr = term(before, rate_b) + term(after, rate_a) - term(total[-1:], rate)
    best = int(np.argmax(llr))
    return RateChange(int(where[k[best]]), float(rate_b[best]), float(rate_a[best]), float(llr[best]))


def split_llr(before: Floats, after: Floats) -> float:
    """How sure two stretches of counts per cell have different Poisson rates: the log-likelihood ratio (NaN left out)."""
    stretches = [(float(np.nansum(c)), int((~np.isnan(c)).sum())) for c in (before, after)]
    events, cells = sum(e for e, _ in stretches), sum(n for _, n in stretches)
    if events == 0:
        return 0.0
    return sum(e * math.log(e / n / (events / cells)) for e, n in stretches if e > 0)


def spread(rises: Floats, pace_s: int) -> Floats:
    """Increases of a counter that is read every `pace_s` seconds, spread evenly over the seconds that each covers."""
    out = np.where(np.isnan(rises), math.nan, 0.0)
    for i in np.flatnonzero(rises > 0):
        covered = np.arange(max(0, int(i) - pace_s + 1), int(i) + 1)
        known = covered[~np.isnan(rises[covered])]
        out[known] += rises[i] / len(known)
    return out


def bucket_quantile(bounds: tuple[float, ...], counts: Floats, q: float) -> float | None:
    """A quantile of a histogram from counts per bucket (the last one is +Inf).

    None where it lies in the first bucket (nothing is known below its bound) or above the last bound.
    """
    total = float(counts.sum())
    if total <= 0:
        return None
    cumulative = np.cumsum(counts)
    i = int(np.searchsorted(cumulative, q * total))
    if i == 0 or i >= len(bounds):
        return None
    inside = (q * total - cumulative[i - 1]) / counts[i] if counts[i] else 0.0
    return bounds[i - 1] + (bounds[i] - bounds[i - 1]) * float(inside)


def quantile(values: Floats, q: float) -> float:
    """Quantile with linear interpolation; NaN for no values. (What numpy's does, without its 60 µs of preparation.)"""
    n = len(values)
    if not n:
        return math.nan
    ordered = np.sort(values)
    if math.isnan(ordered[-1]):  # NaN sorts last
        return math.nan
    place = q * (n - 1)
    k = int(place)
    below, above, share = float(ordered[k]), float(ordered[min(k + 1, n - 1)]), place - k
    if share == 0:
        return below
    return above - (above - below) * (1 - share) if share >= 0.5 else below + (above - below) * share
