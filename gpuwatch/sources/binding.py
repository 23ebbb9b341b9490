"""Ties a dialect to the series of one page layout: which values make which signal of which rank.

Computed once a layout; each page then costs a few additions. Series of one rank that a term selects are added up
(finish reasons, served adapters), or their largest is taken where each repeats the same quantity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..dialects.dialect import Dialect, Reading, Term
from ..exposition import Series


class Sums(msgspec.Struct, frozen=True):
    """A gauge or counter of one rank: the values at `indices`, combined and scaled."""

    name: str
    indices: tuple[int, ...]
    factor: float
    largest: bool


class Buckets(msgspec.Struct, frozen=True):
    """A histogram of one rank: for each bound the indices of its buckets; sum and count likewise."""

    name: str
    bounds: tuple[float, ...]
    cumulative: tuple[tuple[int, ...], ...]
    sum: tuple[int, ...]
    count: tuple[int, ...]


class RankBinding(msgspec.Struct, frozen=True):
    """What a page says about one rank. `stamps` are indices of start stamps."""

    rank: int
    sums: tuple[Sums, ...]
    histograms: tuple[Buckets, ...]
    facts: dict[str, str]
    stamps: tuple[int, ...]


def bind(dialect: Dialect, prefix: str, series: Sequence[Series]) -> tuple[tuple[RankBinding, ...], int]:
    """Bindings by rank and how many histograms could not be read. Series that name no rank go to the lowest."""
    by_name: dict[str, list[int]] = {}
    for index, one in enumerate(series):
        by_name.setdefault(one.name, []).append(index)
    ranks = [_rank(one, dialect.rank_label) for one in series]
    present = sorted({rank for rank in ranks if rank is not None}) or [0]
    homes = [present[0] if rank is None else rank for rank in ranks]
    bindings, bad = [], 0
    for rank in present:
        mine = {name: [i for i in found if homes[i] == rank] for name, found in by_name.items()}
        binding, unread = _bind_rank(
            dialect, prefix, series, {name: found for name, found in mine.items() if found}, rank
        )
        bindings.append(binding)
        bad += unread
    return tuple(bindings), bad


def _bind_rank(
    dialect: Dialect, prefix: str, series: Sequence[Series], mine: dict[str, list[int]], rank: int
) -> tuple[RankBinding, int]:
    sums = []
    for name, reading in dialect.signals.items():
        indices = _reading(reading, prefix, series, mine)
        if indices is not None:
            sums.append(Sums(name, indices, reading.factor, reading.across == "max"))
    histograms, bad = [], 0
    for name, theirs in dialect.histograms.items():
        found = next((prefix + n for n in theirs if prefix + n + "_bucket" in mine), None)
        if found is None:
            continue
        buckets = _histogram(name, found, series, mine)
        if buckets is None:
            bad += 1
        else:
            histograms.append(buckets)
    facts: dict[str, str] = {}
    for source in dialect.facts:
        for index in (i for n in source.names for i in mine.get(prefix + n, ())):
            labels = series[index].labels
            facts.update(
                labels if not source.labels else {o: labels[t] for t, o in source.labels.items() if t in labels}
            )
    if "model" not in facts:
        facts.update(_model(dialect, series, mine))
    stamps = tuple(i for n in dialect.created for i in mine.get(prefix + n, ()))
    return RankBinding(rank, tuple(sums), tuple(histograms), facts, stamps), bad


def _reading(
    reading: Reading, prefix: str, series: Sequence[Series], mine: dict[str, list[int]]
) -> tuple[int, ...] | None:
    """Indices of all terms; None while a needed one is not on the page."""
    chosen: list[int] = []
    for term in reading.terms:
        name = next((n for n in (n if term.bare else prefix + n for n in term.names) if n in mine), None)
        indices = [i for i in mine[name] if _selects(term, series[i])] if name else []
        if not indices and not term.optional:
            return None
        chosen += indices
    return tuple(chosen)


def _selects(term: Term, one: Series) -> bool:
    return all(one.labels.get(label) in allowed for label, allowed in term.where.items()) and not any(
        one.labels.get(label) in refused for label, refused in term.unless.items()
    )


def _histogram(name: str, theirs: str, series: Sequence[Series], mine: dict[str, list[int]]) -> Buckets | None:
    """None where sum or count are missing, or where series of one rank have different bounds."""
    sums, counts = mine.get(theirs + "_sum"), mine.get(theirs + "_count")
    by_bound: dict[float, list[int]] = {}
    for index in mine[theirs + "_bucket"]:
        try:
            bound = float(series[index].labels["le"])
        except (KeyError, ValueError):
            return None
        by_bound.setdefault(bound, []).append(index)
    counts = counts or by_bound.get(math.inf)
    by_bound.pop(math.inf, None)
    if not sums or not counts or any(len(found) != len(counts) for found in by_bound.values()):
        return None
    bounds = tuple(sorted(by_bound))
    return Buckets(name, bounds, tuple(tuple(by_bound[b]) for b in bounds), tuple(sums), tuple(counts))


def _model(dialect: Dialect, series: Sequence[Series], mine: dict[str, list[int]]) -> dict[str, str]:
    for found in mine.values():
        for index in found:
            model = series[index].labels.get(dialect.model_label)
            if model:
                return {"model": model}
    return {}


def _rank(one: Series, label: str) -> int | None:
    text = one.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
