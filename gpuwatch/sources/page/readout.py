"""Turns the values of one page into a rank's signals and histograms, and refuses what cannot be.

A value that the catalogue calls impossible is NaN and counted. A histogram is left out, and counted, where its counts
fall along the bounds or where its sum falls while its count does not: some engine observed a negative duration, and a
mean over that step would be nonsense.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ...catalog import check_value
from ...model import Histogram, Subject
from .binding import Averaged, Buckets, RankBinding


def signals(rank: RankBinding, raw: Sequence[float]) -> tuple[dict[str, float], int]:
    """Values by signal; impossible ones become NaN and are counted."""
    found = [(one.name, one.value(raw)) for one in rank.sums]
    for lists in rank.lists:
        newest = max(range(len(lists.indices)), key=lambda k: _or_least(raw[lists.indices[k]]))
        found += lists.told[newest].items()
    return possible(dict(found))


def possible(found: Mapping[str, float]) -> tuple[dict[str, float], int]:
    """The same; what the catalogue calls impossible is NaN, and how many those are."""
    values: dict[str, float] = {}
    bad = 0
    for name, value in found.items():
        if not check_value(name, value) or value == math.inf:
            value = math.nan
            bad += 1
        values[name] = value
    return values, bad


class HistogramBook:
    """One rank's histograms as last seen: what a sum may not fall below."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def read(self, subject: Subject, rank: RankBinding, raw: Sequence[float], at: float) -> tuple[list[Histogram], int]:
        """Histograms that make sense, and how many did not."""
        found: list[Histogram] = []
        bad = 0
        for h in itertools.chain(_bucketed(subject, rank.histograms, raw, at), _averaged(subject, rank.means, raw, at)):
            if h is None or self._fell(h):
                bad += 1
            else:
                found.append(h)
        return found, bad

    def _fell(self, h: Histogram) -> bool:
        total, count = self._last.get(h.name, (-math.inf, 0.0))
        self._last[h.name] = (h.sum, h.count)
        return h.sum < total and h.count >= count


def _bucketed(
    subject: Subject, bound: Sequence[Buckets], raw: Sequence[float], at: float
) -> Iterable[Histogram | None]:
    for one in bound:
        if len(one.count) == 1:
            cumulative = tuple([raw[i] for (i,) in one.cumulative])
            total, count = raw[one.sum[0]], raw[one.count[0]]
        else:
            cumulative = tuple([sum(raw[i] for i in each) for each in one.cumulative])
            total, count = sum(raw[i] for i in one.sum), sum(raw[i] for i in one.count)
        steps = (0.0, *cumulative, count)
        if not math.isfinite(total) or count == math.inf or any(not a <= b for a, b in itertools.pairwise(steps)):
            yield None
            continue
        yield Histogram(subject, "page", one.name, at, one.bounds, cumulative, total * one.factor, count)


def _averaged(
    subject: Subject, bound: Sequence[Averaged], raw: Sequence[float], at: float
) -> Iterable[Histogram | None]:
    for one in bound:
        total, count = one.sum.value(raw), one.count.value(raw)
        sound = 0 <= total < math.inf and 0 <= count < math.inf
        yield Histogram(subject, "page", one.name, at, (), (), total, count) if sound else None


def _or_least(value: float) -> float:
    return value if value == value else -math.inf
