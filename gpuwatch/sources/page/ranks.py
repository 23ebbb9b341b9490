"""Which series of a page belong to which rank or replica, and which of them only repeat another.

A rank is named by the dialect's rank labels (`engine`, `dp_rank`, a replica's id) and by those that a page put together
from several engines carries (`instance`, `pod`). Series with the engine's sentinel names say which ranks there are;
what carries no such label belongs to the lowest rank, what names another (a Triton model that is no LLM) to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from ...dialects.dialect import Dialect
from ...wire.exposition import Series

MAX_RANKS = 64
_AGGREGATED = ("instance", "pod", "replica")

Key = tuple[tuple[str, str], ...]


class RankNumbers:
    """Numbers for ranks: small integers keep theirs, anything else is numbered as it is first seen.

    Of those that have not been seen for longest a thousand are remembered: replicas come and go for months.
    """

    def __init__(self) -> None:
        self._known: dict[Key, int] = {}  # the longest unseen first
        self._next = 0

    def number(self, keys: Iterable[Key]) -> dict[Key, int]:
        """A number for each key of one page."""
        ordered = sorted(keys)
        plain = {key: _integer(key[0][1]) if len(key) == 1 else None for key in ordered}
        if len({key[0][0] for key in ordered if key}) == 1 and None not in plain.values():
            return {key: value for key, value in plain.items() if value is not None}
        found: dict[Key, int] = {}
        for key in ordered:
            found[key] = self._known.pop(key, self._next)
            self._next += found[key] == self._next
            self._known[key] = found[key]
        for key in list(self._known)[: max(len(self._known) - MAX_RANKS * 16, 0)]:
            del self._known[key]
        return found


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
    place = _Places(numbered)
    strict = bool(named)
    found = {key: place.of(key, strict) for key in set(keys)}
    return [found[key] for key in keys], {number: key for key, number in numbered.items()}, cut


def _distinct(keys: set[Key]) -> set[Key]:
    """Without those that say less than another: a series without the label speaks for the lowest rank."""
    less = {part for key in keys for part in _parts(key) if len(part) < len(key)}
    return keys - less - {()} or {()}


def _parts(key: Key) -> Iterator[Key]:
    """All that says no more than `key`, itself included. A key has a handful of labels."""
    for size in range(len(key) + 1):
        yield from combinations(key, size)


class _Places:
    """Which of the numbered ranks a series belongs to, by what its key says; a look-up, however many keys a page has."""

    def __init__(self, numbered: dict[Key, int]) -> None:
        self._lowest = min(numbered.values())
        self._fitting: dict[Key, int] = {}
        self._shapes: dict[tuple[str, ...], set[Key]] = {}
        for rank, number in sorted(numbered.items(), key=lambda item: -item[1]):
            parts = set(_parts(rank))
            self._fitting |= dict.fromkeys(parts, number)
            self._shapes.setdefault(tuple(label for label, _ in rank), set()).update(parts)
        self._fitting |= numbered

    def of(self, key: Key, strict: bool) -> int | None:
        """The lowest rank that has all that `key` says; with `strict`, a key that contradicts every rank has none."""
        fitting = self._fitting.get(key)
        if fitting is not None:
            return fitting
        return self._lowest if not strict or self._agrees(key) else None

    def _agrees(self, key: Key) -> bool:
        """Whether some rank says nothing else than `key` where both say something."""
        return any(
            tuple((label, value) for label, value in key if label in shape) in parts
            for shape, parts in self._shapes.items()
        )


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
