"""What came of an input, as little of it as must not change unseen, and how two outcomes are compared.

Times are whole seconds from the input's beginning; two that are no further apart than `CLOSE_S` are the same, and order
counts for nothing among incidents, and among transitions of the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.net.product import Transition, Verdict, subject_of

CLOSE_S = 2
BEYOND_S = 10_000_000
"""An onset so far from the beginning has no time at all: it stands as None."""
SEVERITIES = ("page", "ticket", "info")


class Named(msgspec.Struct, frozen=True, array_like=True):
    """An incident of a verdict."""

    severity: str
    rule: str
    mechanism: str
    subject: str
    status: str
    onset_s: int | None
    symptoms: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What an on-call engineer reads first."""
        return f"{self.severity} {self.rule}" + (f" ({self.mechanism})" if self.mechanism else "")


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A transition of an incident while the input ran."""

    kind: str
    rule: str
    at_s: int


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict and the transitions; or why the input was refused."""

    verdict: tuple[Named, ...] = ()
    transitions: tuple[Change, ...] = ()
    refused: str = ""

    @property
    def title(self) -> str:
        """Severity, class and mechanism of every incident."""
        if self.refused:
            return f"refused: {self.refused}"
        return ", ".join(one.title for one in self.verdict) or "nothing"


def outcome_of(verdict: Verdict, transitions: Iterable[Transition], begin: float) -> Outcome:
    """The outcome of an input whose first second is `begin`."""
    named = [
        Named(
            severity=i.severity,
            rule=i.rule,
            mechanism=i.mechanism,
            subject=subject_of(i),
            status=i.status,
            onset_s=_second(i.onset_at, begin),
            symptoms=tuple(sorted({s.rule for s in i.symptoms})),
            alternatives=tuple(sorted({a.rule for a in i.alternatives})),
        )
        for i in verdict.incidents
    ]
    changes = [Change(t.kind, t.incident.rule, round(t.at - begin)) for t in transitions]
    return Outcome(tuple(sorted(named, key=_rank)), tuple(sorted(changes, key=lambda c: (c.at_s, c.rule, c.kind))))


def _second(at: float, begin: float) -> int | None:
    return round(at - begin) if abs(at - begin) < BEYOND_S else None


def _rank(one: Named) -> tuple[int, str, str, int]:
    return SEVERITIES.index(one.severity), one.rule, one.subject, one.onset_s or 0


def difference(old: Outcome, new: Outcome, *, transitions: bool = True) -> tuple[str, str] | None:
    """In words, what was and what is: whole titles where those differ, else only what differs. None where nothing does."""
    if old.title != new.title:
        return old.title, new.title
    parts = [_details(a, b) for a, b in zip(old.verdict, new.verdict, strict=True)]
    if transitions:
        parts.append(_changes(old.transitions, new.transitions))
    found = [part for part in parts if part is not None]
    return ("; ".join(a for a, _ in found), "; ".join(b for _, b in found)) if found else None


def _details(old: Named, new: Named) -> tuple[str, str] | None:
    was, now = [], []
    for field in ("subject", "status", "symptoms", "alternatives"):
        a, b = getattr(old, field), getattr(new, field)
        if a != b:
            was.append(f"{field} {_words(a)}")
            now.append(f"{field} {_words(b)}")
    if not _close(old.onset_s, new.onset_s):
        was.append(f"onset {_time(old.onset_s)}")
        now.append(f"onset {_time(new.onset_s)}")
    return (f"{old.rule}: {', '.join(was)}", f"{new.rule}: {', '.join(now)}") if was else None


def _changes(old: tuple[Change, ...], new: tuple[Change, ...]) -> tuple[str, str] | None:
    """Transitions one by one, each class for itself: those of two classes may come in another order within `CLOSE_S`."""
    rules = sorted({c.rule for c in (*old, *new)})
    for rule in rules:
        a, b = ([c for c in changes if c.rule == rule] for changes in (old, new))
        same = len(a) == len(b) and all(x.kind == y.kind and _close(x.at_s, y.at_s) for x, y in zip(a, b, strict=True))
        if not same:
            return _course(old), _course(new)
    return None


def _course(changes: tuple[Change, ...]) -> str:
    return ", ".join(f"{c.kind} {c.rule} at {c.at_s} s" for c in changes) or "no transition"


def _close(a: int | None, b: int | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= CLOSE_S


def _time(at: int | None) -> str:
    return "unknown" if at is None else f"{at} s"


def _words(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else " + ".join(value) or "none"
