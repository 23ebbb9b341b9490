"""How a signal is read off a page, as data: selections of series, what is done with them, how far to trust the result.

A signal is a Reading of Terms; a histogram a Distribution; sums and counts without buckets a Mean; a gauge whose labels
are the message a Roster.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

Quality = Literal["live", "at_finish", "stale_possible", "lifetime"]
"""How far a number can be trusted: it moves with the work; only when a request ends; maybe late or frozen; or it is an
average since the start."""

Combine = Literal["sum", "product", "ratio", "max"]


class Term(msgspec.Struct, frozen=True):
    """Series to add up: the first of `names` that the page has, restricted by label values.

    `where` keeps series whose label has one of the values, `unless` drops them. `bare` names carry no engine prefix.
    A signal is unknown while a term without `optional` is not on the page; `zero_with` names others that prove that this
    one exists and has counted nothing yet (a labelled counter appears with its first event): then it is 0.
    """

    names: tuple[str, ...]
    where: dict[str, tuple[str, ...]] = {}
    unless: dict[str, tuple[str, ...]] = {}
    bare: bool = False
    optional: bool = False
    zero_with: tuple[str, ...] = ()

    def full_names(self, prefix: str) -> tuple[str, ...]:
        """Its sample names on a page; some exporters (Ray's older ones) leave a counter's `_total` away."""
        if self.bare:
            return self.names
        shorn = [name.removesuffix("_total") for name in self.names if name.endswith("_total")]
        return tuple(prefix + name for name in (*self.names, *shorn))


class Reading(msgspec.Struct, frozen=True):
    """A signal: its terms combined and multiplied by `factor`. `across` says how series of one term combine.

    `ratio` divides the first term by the second. `otherwise` are other ways, tried in order where the page lacks a term.
    """

    terms: tuple[Term, ...]
    factor: float = 1.0
    across: Literal["sum", "max"] = "sum"
    combine: Combine = "sum"
    quality: Quality = "live"
    otherwise: tuple[Reading, ...] = ()

    @property
    def choices(self) -> tuple[Reading, ...]:
        """This way and the others, in order."""
        return (self, *self.otherwise)

    def is_on(self, prefix: str, seen: AbstractSet[str]) -> bool:
        """Whether a page with these sample names has what it needs."""
        found = [any(name in seen for name in term.full_names(prefix)) for term in self.terms]
        return any(found) and all(there or term.optional for there, term in zip(found, self.terms, strict=True))


class Distribution(msgspec.Struct, frozen=True):
    """A histogram: the first of `names` (without `_bucket`) on the page, labels restricted, bounds times `factor`."""

    names: tuple[str, ...]
    where: dict[str, tuple[str, ...]] = {}
    factor: float = 1.0


class Mean(msgspec.Struct, frozen=True):
    """A sum and a count that stand for a histogram without buckets: only its mean can be asked."""

    sum: Reading
    count: Reading


class Roster(msgspec.Struct, frozen=True):
    """A metric that lists names in labels and whose value is the time of the list: the newest series counts.

    `lists` maps a signal to the label that holds a comma-separated list, `numbers` to one that holds a number. Names of
    `lists` are counted once: those of an earlier signal are left out of a later one.
    """

    names: tuple[str, ...]
    lists: dict[str, str]
    numbers: dict[str, str] = {}


def take(
    *names: str,
    factor: float = 1.0,
    bare: bool = False,
    across: Literal["sum", "max"] = "sum",
    quality: Quality = "live",
    zero_with: tuple[str, ...] = (),
    **where: str | tuple[str, ...],
) -> Reading:
    """A signal that is one metric: the first of `names` on the page, series selected by label values."""
    return Reading((Term(names, _labels(where), bare=bare, zero_with=zero_with),), factor, across, quality=quality)


def add(*terms: Term, quality: Quality = "live") -> Reading:
    """A signal that is the sum of several selections."""
    return Reading(terms, quality=quality)


def largest(*terms: Term) -> Reading:
    """The largest of several: one gauge for each pool, and the fullest decides."""
    return Reading(terms, across="max", combine="max")


def product(first: Term, second: Term) -> Reading:
    """Blocks × tokens per block."""
    return Reading((first, second), across="max", combine="product")


def ratio(first: Term, second: Term, quality: Quality = "live") -> Reading:
    """Used ÷ all; unknown where all is 0."""
    return Reading((first, second), across="max", combine="ratio", quality=quality)


def first(*readings: Reading) -> Reading:
    """The first of these that the page has."""
    return msgspec.structs.replace(readings[0], otherwise=readings[1:])


def one(*names: str, optional: bool = False, **where: str | tuple[str, ...]) -> Term:
    """Series of the first of `names` with these label values."""
    return Term(names, _labels(where), optional=optional)


def of(*names: str, factor: float = 1.0, **where: str | tuple[str, ...]) -> Distribution:
    """The first histogram of `names` with these label values."""
    return Distribution(names, _labels(where), factor)


def _labels(where: dict[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {label: (value,) if isinstance(value, str) else value for label, value in where.items()}
