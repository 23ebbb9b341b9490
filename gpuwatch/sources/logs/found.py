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

    `gauges` hold from now on. `rates` are increases per second of a counter since the stats line before, `counts` the
    increase that this line brings, `totals` the counter itself. All by catalogue names.
    """

    policy: str
    gauges: dict[str, float] = {}
    rates: dict[str, float] = {}
    counts: dict[str, float] = {}
    totals: dict[str, float] = {}
    rank: int | None = None
    took_s: float = 0.0  # how long the step took that the line is about; places lines in a log without times

    @property
    def fields(self) -> int:
        """How much the line says; a torn one says less."""
        return len(self.gauges) + len(self.rates) + len(self.counts) + len(self.totals)


class Notice(msgspec.Struct, frozen=True):
    """A message that names a fact: a kind of kinds.NOTICES and its numbers as strings."""

    kind: str
    detail: dict[str, str] = {}
    rank: int | None = None


class Facts(msgspec.Struct, frozen=True):
    """What the engine says of itself, as Info labels."""

    labels: dict[str, str]


class Request(msgspec.Struct, frozen=True):
    """One finished request, in seconds and tokens; NaN where the line does not say."""

    total_s: float
    queue_s: float
    validation_s: float
    inference_s: float
    output_tokens: float


Found: TypeAlias = "Stats | Notice | Facts | Request"
Reader: TypeAlias = Callable[[str, int], "tuple[Found, ...]"]
"""Reads a payload: the whole text and where the phrase begins in it."""


class Phrase(msgspec.Struct, frozen=True):
    """A literal that announces a payload, and who reads it. `engine` is what prints it; empty for what several print."""

    literal: str
    engine: str
    read: Reader
