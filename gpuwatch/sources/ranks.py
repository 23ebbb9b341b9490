"""Which series of a page belong to which rank or replica, and which of them only repeat another.

A rank is named by the dialect's rank labels (`engine`, `dp_rank`, a replica's id) and by those that a page put together
from several engines carries (`instance`, `pod`). Series with the engine's sentinel names say which ranks there are;
what carries no such label belongs to the lowest rank, what names another (a Triton model that is no LLM) to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dialects.dialect import Dialect
from ..exposition import Series

MAX_RANKS = 64
_AGGREGATED = ("instance", "pod", "replica")

Key = tuple[tuple[str, str], ...]


class RankNumbers:
    """Numbers for ranks: small integers keep theirs, anything else is numbered as it is first seen."""

    def __init__(self) -> None:
        self._known: dict[Key, int] = {}

    def number(self, keys: Iterable[Key]) -> dict[Key, int]:
        """A number for each key of one page."""
        ordered = sorted(keys)
        plain = {key: _integer(key[0][1]) if len(key) == 1 else None for key in ordered}
        if len({key[0][0] for key in ordered if key}) == 1 and None not in plain.values():
            return {key: value for key, value in plain.items() if value is not None}
        for key in ordered:
            if key not in self._known and len(self._known) < MAX_RANKS * 16:
                self._known[key] = len(self._known)
        return {key: self._known[key] for key in ordered if key in self._known}


def homes(
    dialect: Dialect, prefix: str, series: Sequence[Series], numbers: RankNumbers
) -> tuple[list[int | None], dict[int, Key], int]:
    """The rank of each series (None: no rank of this engine), the key of each rank, and how many ranks were cut."""
    labels = (*dialect.rank_labels, *_AGGREGATED)
    sentinels = dialect.sentinels(prefix)
    keys = [tuple((label, one.labels[label]) for label in labels if one.labels.get(label)) for one in series]
    named = {key for one, key in zip(series, keys, strict=True) if one.name in sentinels}
    present = _distinct(named or set(keys))
    cut = max(len(present) - MAX_RANKS, 0)
    numbered = numbers.number(sorted(present)[:MAX_RANKS])
    lowest = min(numbered, key=numbered.__getitem__)
    found: dict[Key, int | None] = {
        key: numbered.get(key, _partial(key, numbered, lowest, strict=bool(named))) for key in set(keys)
    }
    return [found[key] for key in keys], {number: key for key, number in numbered.items()}, cut


def _distinct(keys: set[Key]) -> set[Key]:
    """Without those that say less than another: a series without the label speaks for the lowest rank."""
    kept = {key for key in keys if key and not any(set(key) < set(other) for other in keys)}
    return kept or {()}


def _partial(key: Key, numbered: dict[Key, int], lowest: Key, *, strict: bool) -> int | None:
    """The lowest rank that has all that `key` says; a key that contradicts every rank belongs to none."""
    fitting = [number for other, number in numbered.items() if set(key) <= set(other)]
    if fitting:
        return min(fitting)
    says = dict(key)
    at_odds = all(any(says.get(label, value) != value for label, value in other) for other in numbered)
    return None if strict and at_odds else numbered[lowest]


def one_of_each(dialect: Dialect, series: Sequence[Series], indices: Sequence[int]) -> list[tuple[int, ...]]:
    """The series of one name without a total's parts; in each group copies of one quantity, the lowest rank's first."""
    kept = list(indices)
    for label in dialect.totals:
        whole = [i for i in kept if not series[i].labels.get(label)]
        if whole and any(series[i].labels.get(label) for i in kept):
            kept = whole
    if not dialect.copies:
        return [(i,) for i in kept]
    groups: dict[Key, list[int]] = {}
    for i in kept:
        rest = tuple(sorted((k, v) for k, v in series[i].labels.items() if k not in dialect.copies))
        groups.setdefault(rest, []).append(i)
    return [
        tuple(sorted(group, key=lambda i: [series[i].labels.get(label, "") for label in dialect.copies]))
        for group in groups.values()
    ]


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
