"""Ties a dialect to the series of one page layout: which values make which signal of which rank.

Computed once a layout; each page then costs a few additions. Series of one rank that a term selects are added up
(finish reasons, served adapters), or their largest is taken where each repeats the same quantity.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import msgspec

from ...dialects.dialect import Dialect
from ...dialects.reading import Combine, Distribution, Quality, Reading, Roster, Term
from ...wire.exposition import Series
from .ranks import RankNumbers, homes, one_of_each

Names = Mapping[str, list[int]]


class Picked(msgspec.Struct, frozen=True):
    """One term: the largest of each group of copies, added up; or the largest of all. No group: it is 0."""

    groups: tuple[tuple[int, ...], ...]
    largest: bool

    def value(self, raw: Sequence[float]) -> float:
        """Its value on a page; NaN where a part is not known."""
        parts = [raw[group[0]] if len(group) == 1 else _known_max([raw[i] for i in group]) for group in self.groups]
        return _known_max(parts) if self.largest and parts else sum(parts, 0.0)


class Sums(msgspec.Struct, frozen=True):
    """A gauge or counter of one rank: its terms, how they combine, and by what to multiply."""

    name: str
    terms: tuple[Picked, ...]
    factor: float
    combine: Combine
    quality: Quality

    def value(self, raw: Sequence[float]) -> float:
        """Its value on a page; NaN where not known."""
        parts = [term.value(raw) for term in self.terms]
        if self.combine == "ratio":
            return parts[0] / parts[1] * self.factor if parts[1] else math.nan
        if self.combine == "max":
            return _known_max(parts) * self.factor
        return (math.prod(parts) if self.combine == "product" else sum(parts, 0.0)) * self.factor


class Buckets(msgspec.Struct, frozen=True):
    """A histogram of one rank: for each bound the indices of its buckets; sum and count likewise."""

    name: str
    bounds: tuple[float, ...]
    cumulative: tuple[tuple[int, ...], ...]
    sum: tuple[int, ...]
    count: tuple[int, ...]
    factor: float = 1.0


class Averaged(msgspec.Struct, frozen=True):
    """A histogram without buckets: its sum and its count are counters of their own."""

    name: str
    sum: Sums
    count: Sums


class Lists(msgspec.Struct, frozen=True):
    """Lists in labels: `told[i]` are the signals that the series at `indices[i]` says; the newest series counts."""

    indices: tuple[int, ...]
    told: tuple[dict[str, float], ...]


class RankBinding(msgspec.Struct, frozen=True):
    """What a page says about one rank. `stamps` are indices of start stamps, `key` the labels that name the rank."""

    rank: int
    sums: tuple[Sums, ...]
    histograms: tuple[Buckets, ...]
    means: tuple[Averaged, ...]
    lists: tuple[Lists, ...]
    facts: dict[str, str]
    stamps: tuple[int, ...]
    key: tuple[tuple[str, str], ...] = ()

    @property
    def says_something(self) -> bool:
        """Whether there is more than the process's own start."""
        return bool(self.histograms or self.means) or any(one.name != "process_start_seconds" for one in self.sums)


def bind(
    dialect: Dialect,
    prefix: str,
    series: Sequence[Series],
    numbers: RankNumbers | None = None,
    only: Container[str] | None = None,
) -> tuple[tuple[RankBinding, ...], int]:
    """Bindings by rank and how much could not be read. Series that name no rank go to the lowest.

    `only` names the signals that a filtered page was asked for: what it was not asked for is not absent from it.
    """
    if not series:
        return (), 0
    home, keys, bad = homes(dialect, prefix, series, numbers or RankNumbers())
    by_rank: dict[int, dict[str, list[int]]] = {rank: {} for rank in sorted(keys)}
    for index, one in enumerate(series):
        rank = home[index]
        if rank is not None:
            by_rank[rank].setdefault(one.name, []).append(index)
    bindings = []
    for rank, mine in by_rank.items():
        binding, unread = _Binder(dialect, prefix, series, mine).bind(rank, keys[rank], only)
        bindings.append(binding)
        bad += unread
    return tuple(bindings), bad


class _Binder:
    """Binds one rank's series: `mine` holds their indices by name."""

    def __init__(self, dialect: Dialect, prefix: str, series: Sequence[Series], mine: Names) -> None:
        self.dialect = dialect
        self.prefix = prefix
        self.series = series
        self.mine = mine

    def bind(self, rank: int, key: tuple[tuple[str, str], ...], only: Container[str] | None) -> tuple[RankBinding, int]:
        dialect, mine = self.dialect, self.mine
        wanted = {name: r for name, r in dialect.signals.items() if only is None or name in only}
        sums = [found for name, reading in wanted.items() if (found := self._sums(name, reading))]
        histograms, bad = [], 0
        for name, distribution in dialect.histograms.items():
            theirs = next((self.prefix + n for n in distribution.names if self.prefix + n + "_bucket" in mine), None)
            buckets = self._histogram(name, theirs, distribution) if theirs else None
            bad += theirs is not None and buckets is None
            if buckets and buckets.count:
                histograms.append(buckets)
        means = []
        for name, mean in dialect.means.items():
            total, count = self._sums(name, mean.sum), self._sums(name, mean.count)
            if total and count:
                means.append(Averaged(name, total, count))
        lists = [told for roster in dialect.rosters if (told := self._lists(roster))]
        stamps = tuple(i for n in dialect.created for i in mine.get(self.prefix + n, ()))
        return RankBinding(
            rank, tuple(sums), tuple(histograms), tuple(means), tuple(lists), self._facts(), stamps, key
        ), bad

    def _sums(self, name: str, reading: Reading) -> Sums | None:
        """The first way of reading it that the page allows; None where none is."""
        for choice in reading.choices:
            terms = self._terms(choice)
            if terms is not None:
                return Sums(name, terms, choice.factor, choice.combine, choice.quality)
        return None

    def _terms(self, reading: Reading) -> tuple[Picked, ...] | None:
        """All its terms; None while a needed one is not on the page, or none is."""
        picked: list[Picked] = []
        for term in reading.terms:
            groups = self._select(term)
            if groups:
                picked.append(Picked(tuple(groups), reading.across == "max"))
            elif any(self.prefix + name in self.mine for name in term.zero_with):
                picked.append(Picked((), False))
            elif not term.optional:
                return None
        return tuple(picked) or None

    def _select(self, term: Term) -> list[tuple[int, ...]]:
        name = next((n for n in term.full_names(self.prefix) if n in self.mine), None)
        if name is None:
            return []
        chosen = [i for i in self.mine[name] if _selects(term, self.series[i])]
        return one_of_each(self.dialect, self.series, chosen)

    def _histogram(self, name: str, theirs: str, distribution: Distribution) -> Buckets | None:
        """None where sum or count are missing, or where series of one rank have different bounds."""
        where = Term((theirs,), distribution.where)
        parts = {
            suffix: [
                group[0]
                for group in one_of_each(
                    self.dialect,
                    self.series,
                    [i for i in self.mine.get(theirs + suffix, ()) if _selects(where, self.series[i])],
                )
            ]
            for suffix in ("_bucket", "_sum", "_count")
        }
        by_bound: dict[float, list[int]] = {}
        for index in parts["_bucket"]:
            try:
                bound = float(self.series[index].labels["le"])
            except (KeyError, ValueError):
                return None
            by_bound.setdefault(bound, []).append(index)
        sums, counts = parts["_sum"], parts["_count"] or by_bound.get(math.inf, [])
        by_bound.pop(math.inf, None)
        if distribution.where and not by_bound:
            return Buckets(name, (), (), (), ())  # the stage has not been seen yet
        if not sums or not counts or any(len(found) != len(counts) for found in by_bound.values()):
            return None
        bounds = tuple(sorted(by_bound))
        return Buckets(
            name, tuple(b * distribution.factor for b in bounds), tuple(tuple(by_bound[b]) for b in bounds),
            tuple(sums), tuple(counts), distribution.factor,
        )  # fmt: skip

    def _lists(self, roster: Roster) -> Lists | None:
        indices = [i for n in roster.names for i in self.mine.get(self.prefix + n, ())]
        if not indices:
            return None
        return Lists(tuple(indices), tuple(_told(roster, self.series[i].labels) for i in indices))

    def _facts(self) -> dict[str, str]:
        facts: dict[str, str] = {}
        for source in self.dialect.facts:
            for index in (i for n in source.names for i in self.mine.get(self.prefix + n, ())):
                labels = self.series[index].labels
                facts.update(
                    labels if not source.labels else {o: labels[t] for t, o in source.labels.items() if t in labels}
                )
        if "model" not in facts:
            facts.update(self._model())
        return facts

    def _model(self) -> dict[str, str]:
        """The model's name, from sentinel series first."""
        known = self.dialect.sentinels(self.prefix)
        for name in sorted(self.mine, key=lambda n: n not in known):
            for index in self.mine[name]:
                for label in self.dialect.model_labels:
                    model = self.series[index].labels.get(label)
                    if model and model != "undefined":
                        return {"model": model}
        return {}


def _told(roster: Roster, labels: Mapping[str, str]) -> dict[str, float]:
    told: dict[str, float] = {}
    counted: set[str] = set()
    for signal, label in roster.lists.items():
        names = {name.strip() for name in labels.get(label, "").split(",") if name.strip()} - counted
        counted |= names
        told[signal] = float(len(names))
    for signal, label in roster.numbers.items():
        text = labels.get(label, "")
        if text.isascii() and text.isdigit():
            told[signal] = float(text)
    return told


def _selects(term: Term, one: Series) -> bool:
    return all(one.labels.get(label) in allowed for label, allowed in term.where.items()) and not any(
        one.labels.get(label) in refused for label, refused in term.unless.items()
    )


def _known_max(values: Sequence[float]) -> float:
    """The largest that is known; NaN where none is."""
    return max(values, key=lambda v: v if v == v else -math.inf)
