"""What a postmortem says, as plain text in its order: both renderings put these words on a page and add none.

Pure: ReportData in, View out. Texts still hold an engine's own strings as they came; escaping is the renderings' duty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from shlex import quote

import msgspec

from ..catalog import CATALOG
from ..model import Culprit, Evidence, Incident, Verdict
from .advice import AdviceRow, advice_rows
from .bars import request_words
from .data import ReportData
from .timeline import Moment, timeline, trigger_words
from .words import UNKNOWN, duration, percent, plain, quantity, readable, unit_of, utc, utc_date

_SEVERITY = {"page": "Page", "ticket": "Ticket", "info": "Info"}


class Tile(msgspec.Struct, frozen=True):
    """One number of the impact: what it is, before the incident and in it, and a note."""

    label: str
    value: str
    before: str = ""
    note: str = ""


class EvidenceRow(msgspec.Struct, frozen=True):
    """One line of the evidence table, as text."""

    signal: str
    observed: str
    limit: str
    window: str
    source: str


class Because(msgspec.Struct, frozen=True):
    """A class and why it is not the cause, or how well it fits too."""

    name: str
    because: str
    evidence: tuple[EvidenceRow, ...] = ()


class View(msgspec.Struct, frozen=True):
    """The postmortem as text; empty strings and tuples are parts that do not apply."""

    kind: str  # incident, unknown, healthy
    severity: str
    rule: str
    title: str
    when: str
    where: str
    cause: str
    trigger: str
    calm: str
    tiles: tuple[Tile, ...]
    timeline: tuple[Moment, ...]
    state_line: str
    evidence: tuple[EvidenceRow, ...]
    ruled_out: tuple[Because, ...]
    alternatives: tuple[Because, ...]
    culprits: tuple[str, ...]
    symptoms: tuple[str, ...]
    others: tuple[str, ...]
    blind: tuple[Because, ...]
    gaps: tuple[Because, ...]
    advice: tuple[AdviceRow, ...]
    not_now: tuple[str, ...]
    queries: tuple[str, ...]
    requests: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]
    replay: str
    notes: tuple[str, ...]


def view(data: ReportData) -> View:
    """The words of a report."""
    incident = data.incident
    kind = "healthy" if incident is None else "unknown" if incident.rule == "unknown" else "incident"
    return View(
        kind=kind,
        severity=_SEVERITY[incident.severity] if incident else "",
        rule=incident.rule if incident else "",
        title=_title(incident),
        when=_when(data),
        where=_where(data),
        cause=(incident.summary if incident else ""),
        trigger=_trigger(incident),
        calm=_calm(data) if incident is None else "",
        tiles=_tiles(data),
        timeline=timeline(data),
        state_line=_state_line(data),
        evidence=tuple(evidence_row(e) for e in incident.evidence) if incident else (),
        ruled_out=_ruled_out(incident),
        alternatives=_alternatives(incident),
        culprits=_culprits(incident),
        symptoms=tuple(f"{readable(s.rule)}: {s.summary}" for s in incident.symptoms) if incident else (),
        others=_others(data.verdict, incident),
        blind=tuple(Because(readable(b.rule), _blindness(b.missing, b.cure)) for b in data.verdict.blind),
        gaps=tuple(Because(g.label, g.why) for g in data.gaps),
        advice=advice_rows(incident),
        not_now=incident.not_now if incident else (),
        queries=_queries(data),
        requests=tuple((r.id, request_words(r)) for r in sorted(data.requests, key=lambda r: r.start)),
        sources=_sources(data.verdict),
        replay=f"gpuwatch replay {quote(data.capsule)}" if data.capsule else "",
        notes=_notes(data),
    )


def evidence_row(e: Evidence) -> EvidenceRow:
    """One piece of evidence as text, with the unit of its signal."""
    unit = unit_of(e.signal)
    op = {">=": "≥", "<=": "≤"}.get(e.op, e.op)
    limit = f"{op} {quantity(e.limit, unit)}".strip() if e.limit is not None else ""
    return EvidenceRow(
        e.signal, quantity(e.observed, unit), limit, duration(e.window_s) if e.window_s else "", e.source
    )


def _title(incident: Incident | None) -> str:
    if incident is None:
        return "No incident in this record"
    if incident.rule == "unknown":
        return "Users are hurt, and the cause is not decided"
    from ..rules import load_rules

    rule = load_rules().get(incident.rule)
    return rule.title if rule else readable(incident.rule)


def _when(data: ReportData) -> str:
    incident = data.incident
    if incident is None:
        return f"{utc_date(data.from_at)}, {duration(data.until_at - data.from_at)} watched"
    if incident.resolved_at is None:
        return f"{utc_date(incident.onset_at)}, still open at the end of the record"
    return f"{utc_date(incident.onset_at)}, lasted {duration(incident.resolved_at - incident.onset_at)}"


def _where(data: ReportData) -> str:
    parts = [f"engine {data.engine}"]
    if data.model:
        parts.append(f"model {data.model}")
    if data.incident is not None:
        subject = data.incident.subject
        parts += [f"{k} {v}" for k, v in subject.items() if k == "gpu" and v]
        parts += [f"{k} {v}" for k, v in data.incident.scope.items() if v]
    return " · ".join(parts)


def _trigger(incident: Incident | None) -> str:
    if incident is None or incident.trigger is None:
        return ""
    trigger = incident.trigger
    ahead_s = round(incident.onset_at - trigger.at)
    order = f", {duration(float(abs(ahead_s)))} {'before' if ahead_s > 0 else 'after'} the onset" if ahead_s else ""
    return f"Set off at {utc(trigger.at)}{order}, by {trigger_words(trigger)}"


def _calm(data: ReportData) -> str:
    peaks = []
    for name in ("ttft_p95_s", "req_waiting", "kv_usage_ratio"):
        series = data.series.get(name)
        if series is not None and len(series.values):
            top = max((v for v in series.values.tolist() if not math.isnan(v)), default=math.nan)
            peaks.append(f"{series.label} peaked at {quantity(top, series.unit)}")
    watched = f"gpuwatch judged {data.ticks:,} seconds of this engine and opened nothing."
    slo = f" The objective is TTFT P95 ≤ {duration(data.ttft_p95_slo_s)}."
    return watched + slo + (f" {'; '.join(peaks)}." if peaks else "")


def _tiles(data: ReportData) -> tuple[Tile, ...]:
    incident = data.incident
    if incident is None:
        return ()
    impact = incident.impact
    tiles = [
        Tile("Requests in time", percent(impact.good_ratio), percent(impact.before_ratio), impact.objective),
        Tile("Late requests", plain(impact.late_requests), "", _breach(incident)),
        Tile("TTFT P95", duration(impact.ttft_p95_s[1]), duration(impact.ttft_p95_s[0]), "time to first token"),
    ]
    if impact.e2e_p95_s != (None, None):
        tiles.append(Tile("E2E P95", duration(impact.e2e_p95_s[1]), duration(impact.e2e_p95_s[0]), "whole answer"))
    end = incident.resolved_at if incident.resolved_at is not None else data.until_at
    open_still = "" if incident.resolved_at is not None else "and still open; "
    seen = duration(float(round(incident.detected_at - incident.onset_at)))
    tiles.append(
        Tile("Duration", duration(end - incident.onset_at), "", f"{open_still}detected {seen} after the onset")
    )
    return tuple(tiles)


def _breach(incident: Incident) -> str:
    if incident.impact.breached:
        return "the objective is breached"
    if incident.impact.breach_in_s is not None:
        return f"breach in {duration(incident.impact.breach_in_s)}"
    return "the objective still holds"


def _state_line(data: ReportData) -> str:
    """The line of the worst moment that the reader cares about: the detection; else the last one."""
    if not data.states:
        return ""
    if data.incident is None:
        return data.states[-1].line
    seen = [s for s in data.states if s.at <= data.incident.detected_at + 0.5]
    return (seen or list(data.states))[-1].line


def _ruled_out(incident: Incident | None) -> tuple[Because, ...]:
    if incident is None:
        return ()
    return tuple(
        Because(readable(r.rule), r.because, tuple(evidence_row(e) for e in r.evidence)) for r in incident.ruled_out
    )


def _alternatives(incident: Incident | None) -> tuple[Because, ...]:
    if incident is None:
        return ()
    return tuple(Because(readable(a.rule), f"fits with confidence {a.confidence:.2f}") for a in incident.alternatives)


def _culprits(incident: Incident | None) -> tuple[str, ...]:
    if incident is None:
        return ()
    return tuple(f"{c.kind} {c.id}: " + (f"{c.detail}, " if c.detail else "") + _share(c) for c in incident.culprits)


def _share(culprit: Culprit) -> str:
    """A culprit's share and of what: who waits needs a part of the whole pool, who holds has a part of what is held."""
    if culprit.detail.startswith("head of the queue"):
        return f"{percent(culprit.share)} of the pool"
    if culprit.detail.startswith("holds "):
        return f"{percent(culprit.share)} of the KV in use"
    return f"share {percent(culprit.share)}"


def _others(verdict: Verdict, shown: Incident | None) -> tuple[str, ...]:
    return tuple(
        f"{readable(i.rule)} ({i.severity}) from {utc(i.onset_at)}: {i.summary}"
        for i in verdict.incidents
        if shown is None or i.id != shown.id
    )


def _blindness(missing: Sequence[str], cure: str) -> str:
    return f"lacks {', '.join(missing)}" + (f". Cure: {cure}" if cure else "")


def _queries(data: ReportData) -> tuple[str, ...]:
    """PromQL that shows the same on gpuwatch's own page: the incident, then the signals of its evidence."""
    if data.incident is None:
        return ()
    selector = '{engine="' + _label_value(data.engine) + '"}'
    names = ["incident_open"]
    names += [e.signal for e in data.incident.evidence if (s := CATALOG.get(e.signal)) and s.kind != "histogram"]
    return tuple(f"gpuwatch_{name}{selector}" for name in dict.fromkeys(names))


def _label_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _sources(verdict: Verdict) -> tuple[str, ...]:
    out = []
    for s in verdict.sources:
        failed = f", {s.errors:,} failed (last: {s.last_error})" if s.errors else ""
        out.append(f"{s.name} ({s.role}, {s.subject}): {s.polls:,} polls{failed}")
    return tuple(out)


def _notes(data: ReportData) -> tuple[str, ...]:
    notes = []
    if data.meta.get("clock") == "virtual":
        notes.append(f"Virtual time: the device ({data.meta.get('device', UNKNOWN)}) was modelled, not measured.")
    shown = [f"{k} {v}" for k, v in data.meta.items() if k != "clock"]
    if shown:
        notes.append("The record says of itself: " + ", ".join(shown) + ".")
    notes += [
        f"{count:,} {what} were beyond this report's bounds and are not in it." for what, count in data.cut.items()
    ]
    return tuple(notes)
