"""The timeline of a report: trigger, onset, detection, what changed, worsened, eased, resolved. UTC and relative."""

from __future__ import annotations

import msgspec

from ..model import Trigger
from .data import ReportData
from .words import quantity, readable, since, unit_of, utc

_MOST = 40
_KINDS = {"worsened": "Worsened", "eased": "Eased", "resolved": "Resolved"}


class Moment(msgspec.Struct, frozen=True):
    """One line of the timeline: time of day, relative to the onset, a word for the kind, and what happened."""

    at: float
    utc: str
    relative: str
    kind: str
    text: str


def timeline(data: ReportData) -> tuple[Moment, ...]:
    """Moments in time order, at most 40: a run of changes beyond that is cut in the middle and says so."""
    incident = data.incident
    zero = incident.onset_at if incident else data.from_at
    found: list[tuple[float, str, str]] = [(data.from_at, "Record", "the record begins")]
    if incident is not None:
        found.append((incident.onset_at, "Onset", incident.mechanism.replace("_", " ") or incident.summary))
        found.append((incident.detected_at, "Detected", f"opened as {incident.severity}: {incident.rule}"))
        if incident.trigger is not None:
            found.append((incident.trigger.at, "Trigger", trigger_words(incident.trigger)))
        found += [(c.at, "Change", c.what + (" (blamed)" if c.blamed else "")) for c in incident.changes]
        found += [(s.onset_at, "Symptom", f"{readable(s.rule)}: {s.summary}") for s in incident.symptoms]
    found += _transitions(data)
    found.append((data.until_at, "Record", "the record ends"))
    found.sort(key=lambda m: m[0])
    return _bounded([Moment(at, utc(at), since(at, zero), kind, text) for at, kind, text in found])


def trigger_words(trigger: Trigger) -> str:
    """`length shift: prompts over 24k 4.1 % (before: 0.4 %)`: in a trigger's evidence the limit is the value before."""
    facts = []
    for e in trigger.evidence:
        unit = unit_of(e.signal)
        before = f" (before: {quantity(e.limit, unit)})" if e.limit is not None else ""
        facts.append(f"{readable(e.signal).lower()} {quantity(e.observed, unit)}{before}")
    return readable(trigger.kind).lower() + (f": {', '.join(facts)}" if facts else "")


def _transitions(data: ReportData) -> list[tuple[float, str, str]]:
    """Changes of the shown incident after its opening; openings of the others."""
    shown = data.incident.id if data.incident else ""
    out = []
    for t in data.transitions:
        if t.incident.id == shown and t.kind in _KINDS:
            out.append((t.at, _KINDS[t.kind], f"now {t.incident.severity}" if t.kind != "resolved" else "harm is gone"))
        elif t.incident.id != shown and t.kind in {"opened", "resolved"}:
            out.append((t.at, "Also", f"{readable(t.incident.rule)} {t.kind}"))
    return out


def _bounded(moments: list[Moment]) -> tuple[Moment, ...]:
    if len(moments) <= _MOST:
        return tuple(moments)
    half = _MOST // 2
    cut = moments[half]
    gap = Moment(cut.at, "", "", "…", f"{len(moments) - 2 * half:,} more changes are not shown")
    return (*moments[:half], gap, *moments[-half:])
