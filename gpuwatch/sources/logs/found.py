"""What one line of a log says, before it has a time and a subject: numbers (Stats), a Notice, or Facts of the start.

All values are in base units already. `rank` is the data-parallel rank that the payload itself names; None leaves it to
the line's tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


class Stats(msgspec.Struct, frozen=True):
    """A stats line. `policy` says what silence after it means (silence.py).

    `gauges` hold from now on, `momentary` ones are true of this moment only. `rates` are increases per second of a
    counter since the stats line before, `counts` the increase that this line brings, `totals` the counter itself. All by
    catalogue names.
    """

    policy: str
    gauges: dict[str, float] = {}
    rates: dict[str, float] = {}
    counts: dict[str, float] = {}
    totals: dict[str, float] = {}
    momentary: dict[str, float] = {}
    unknown: frozenset[str] = frozenset()  # gauges that stood and are not known any more
    rank: int | None = None
    took_s: float = 0.0  # how long the step took that the line is about; places lines in a log without times

    @property
    def fields(self) -> int:
        """How much the line says; a torn one says less."""
        return sum(map(len, (self.gauges, self.momentary, self.rates, self.counts, self.totals)))


class Notice(msgspec.Struct, frozen=True):
    """A message that names a fact: a kind of kinds.NOTICES and its numbers as strings."""

    kind: str
    detail: dict[str, str] = {}
    rank: int | None = None


class Facts(msgspec.Struct, frozen=True):
    """What the engine says of itself, as Info labels."""

    labels: dict[str, str]


class Observed(msgspec.Struct, frozen=True):
    """One observation of each of these histograms of the catalogue, such as a finished request's times."""

    values: dict[str, float]


class Slot(msgspec.Struct, frozen=True):
    """What became of one slot: taken or free, or how fast it generates or computes its prompt. `id` None: all of them."""

    id: int | None
    busy: bool
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None  # 0: its prompt is done


Found: TypeAlias = "Stats | Notice | Facts | Observed | Slot"
Reader: TypeAlias = Callable[[str, int], "tuple[Found, ...]"]
"""Reads a payload: the whole text and where the phrase begins in it."""


class Phrase(msgspec.Struct, frozen=True):
    """A literal that announces a payload, and who reads it. `engine` is what prints it; empty for what several print."""

    literal: str
    engine: str
    read: Reader


def says(kind: str, **detail: str) -> Reader:
    """A reader of a phrase that needs no look behind it."""
    notice = (Notice(kind, detail),)

    def read(text: str, at: int) -> tuple[Found, ...]:
        return notice

    return read


def known(**numbers: float | None) -> dict[str, float]:
    """The signals whose number a line says; what it does not say is absent."""
    return {signal: number for signal, number in numbers.items() if number is not None}
