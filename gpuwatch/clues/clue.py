"""A clue: what a piece of short evidence speaks for, how strongly, what it speaks against, and where to look next.

Confidence is honest about little evidence: one look without a message that names the cause stays at or below `ONE_LOOK`.
`SURE` names a class; below it the verdict is `unknown` with the best candidates.
"""

from __future__ import annotations

import math

import msgspec

from ..model import Alternative, Evidence, RuledOut, Severity, Subject
from .track import Sight

ONE_LOOK = 0.6
SURE = 0.45
LEAST = 0.25
"""Below this a candidate is not worth naming."""


class Clue(msgspec.Struct, frozen=True):
    """One candidate for one subject.

    `picture`: clues that explain the same picture compete, the others stand beside it. `explains`: classes whose clues
    are its symptoms. `named`: a message names the cause. `ended_at`: None while it lasts at the end of what was seen.
    `look_next`: what would decide.
    """

    rule: str
    subject: Subject
    confidence: float
    summary: str
    onset_at: float
    mechanism: str = ""
    severity: Severity = "ticket"
    picture: str = "service"
    evidence: tuple[Evidence, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    instead: tuple[Alternative, ...] = ()
    explains: tuple[str, ...] = ()
    named: bool = False
    ended_at: float | None = None
    look_next: str = ""


def told(
    sight: Sight,
    signal: str,
    observed: float | str,
    limit: float | str | None = None,
    op: str = "",
    window_s: float = 0.0,
) -> Evidence:
    """A number with the source that told it. `signal` may have words behind the catalogue's name."""
    source = sight.source(signal.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0])
    value = None if isinstance(observed, float) and math.isnan(observed) else observed
    return Evidence(signal, value, limit, op, window_s, source or "log")


def ratio(part: float, whole: float) -> float:
    """part ÷ whole; NaN where either is not known or the whole is nothing."""
    return part / whole if whole > 0 else math.nan


def counted(kind: str, n: float, window_s: float = 0.0) -> Evidence:
    """How often a message came."""
    return Evidence(f"messages of the kind {kind}", float(n), None, "", window_s, "log")


def instead(*candidates: tuple[str, float]) -> tuple[Alternative, ...]:
    """Other classes that fit less well."""
    return tuple(Alternative(rule, round(confidence, 2)) for rule, confidence in candidates)


def not_this(rule: str, because: str, *evidence: Evidence) -> RuledOut:
    """A neighbour that this is not, and the number that says so."""
    return RuledOut(rule, because, evidence)
