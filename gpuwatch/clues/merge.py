"""Joins the weighed clues to the pipeline's verdict.

An incident that a rule named stays: a clue of the same class adds evidence, one that it explains becomes a symptom. An
`unknown` of the pipeline is answered by a clue for the same subject. A class that a rule could judge, on a recording long
enough for it, is not contradicted by a clue. Ids are those of the pipeline: hash of class, subject and second of onset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any

import msgspec

from ..model import Alternative, Blind, Evidence, Family, Impact, Incident, Severity, Subject, Symptom, Verdict
from ..rules import load_rules
from ..rules.families import FAMILY_OF
from .clue import Clue
from .remedies import remedy
from .sighting import Sighting
from .weigh import Weighed

JUDGED_S, JUDGED_LOOKS = 150.0, 30
"""A recording of this length, looked at this often, is the rules' to judge."""
UNPROVEN = 0.6
"""The confidence of a hang that only time speaks for."""
_SEVERITY = {"page": 0, "ticket": 1, "info": 2}


def merged(verdict: Verdict, found: Sequence[Weighed], s: Sighting) -> Verdict:
    """The verdict with the clues in it, sorted as ever: severity, onset, class."""
    incidents = [i for i in verdict.incidents if not _was_a_gap(i, s)]
    new = [one for one in found if not _judged_already(one.clue, verdict, s) and not _joined_one(incidents, one, s)]
    incidents += [_incident(one, s, one.clue, None) for one in new]
    incidents.sort(key=lambda i: (_SEVERITY[i.severity], i.onset_at, i.rule))
    failed = (Blind(name, (f"its clue failed: {why}",), "report this") for name, why in s.failed.items())
    return msgspec.structs.replace(verdict, incidents=tuple(incidents), blind=(*verdict.blind, *failed))


def _was_a_gap(incident: Incident, s: Sighting) -> bool:
    """A hang that only the silence of a log spoke for, and that a later line with tokens ended: lines are missing there."""
    if incident.rule != "engine_hang" or incident.resolved_at is None or incident.confidence > UNPROVEN:
        return False
    seen = s.sights.get(Subject(incident.subject["engine"], incident.subject["rank"]).key)
    return seen is not None and {seen.source(name) for name in ("steps_total", "generated_tokens_total")} <= {"", "log"}


def _judged_already(clue: Clue, verdict: Verdict, s: Sighting) -> bool:
    """The class has a rule, the rule was not blind, and the recording was long enough for it."""
    if clue.named or clue.severity == "page" or (clue.rule not in load_rules() and clue.rule != "unknown"):
        return False
    seen = s.sight(clue.subject)
    if seen is None or seen.count < JUDGED_LOOKS or s.span_s < JUDGED_S:
        return False
    rule = "overload" if clue.rule == "unknown" else clue.rule
    return not any(b.rule == rule and b.subject in ("", clue.subject.key) for b in verdict.blind)


def _joined_one(incidents: list[Incident], one: Weighed, s: Sighting) -> bool:
    """Whether the clue is at home in an incident of the pipeline about the same engine: as evidence, answer or symptom."""
    clue = one.clue
    for n, incident in enumerate(incidents):
        if not _same_subject(incident, clue):
            continue
        if incident.rule == "unknown" and clue.rule != "unknown" and clue.severity != "info":
            onset = min(incident.onset_at, clue.onset_at)
            incidents[n] = _incident(one, s, msgspec.structs.replace(clue, onset_at=onset), incident)
            return True
        if incident.rule == clue.rule:
            incidents[n] = msgspec.structs.replace(incident, evidence=_joined(incident.evidence, clue.evidence))
            return True
        if incident.rule != "unknown" and clue.rule == "unknown":
            return True
        if incident.rule != "unknown" and _belongs(incident, clue):
            nested = Symptom(clue.rule, _second(clue.onset_at), clue.summary)
            symptoms = sorted([*incident.symptoms, nested], key=lambda x: (x.onset_at, x.rule))
            have = {x.rule for x in incident.symptoms}
            incidents[n] = (
                incident if clue.rule in have else msgspec.structs.replace(incident, symptoms=tuple(symptoms))
            )
            return True
    return False


def _belongs(incident: Incident, clue: Clue) -> bool:
    """A clue about what the rules have named already; a message that names another cause stands beside it."""
    rule = load_rules().get(incident.rule)
    explained = rule is not None and clue.rule in rule.explains
    return explained or (not clue.named and clue.severity != "page" and clue.picture in ("queue", "speed", "service"))


def _same_subject(incident: Incident, clue: Clue) -> bool:
    it = incident.subject
    return (
        bool(clue.subject.engine) and it.get("engine") == clue.subject.engine and it.get("rank", 0) == clue.subject.rank
    )


def _joined(old: tuple[Evidence, ...], new: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    have = {e.signal for e in old}
    return (*old, *(e for e in new if e.signal not in have))


def _incident(one: Weighed, s: Sighting, clue: Clue, before: Incident | None) -> Incident:
    cure = remedy(clue.rule, clue.mechanism)
    onset = _second(clue.onset_at)
    over_at = clue.ended_at if before is None else before.resolved_at
    symptoms = {c.rule: Symptom(c.rule, _second(c.onset_at), c.summary) for c in one.symptoms}
    return Incident(
        id=blake2s(f"{clue.rule}|{clue.subject.key}|{onset:.0f}".encode(), digest_size=6).hexdigest(),
        rule=clue.rule,
        family=_family(clue),
        severity=_worse(clue.severity, before),
        confidence=round(clue.confidence, 2),
        subject=_subject(clue, s),
        scope=dict(s.config.scope),
        status="open" if over_at is None else "resolved",
        onset_at=onset,
        detected_at=s.last_at if before is None else before.detected_at,
        resolved_at=None if over_at is None else _second(over_at),
        summary=clue.summary + (f" Look next: {clue.look_next}." if clue.look_next else ""),
        mechanism=clue.mechanism,
        trigger=before.trigger if before is not None else None,
        impact=before.impact if before is not None else Impact(objective=f"TTFT P95 ≤ {s.config.slo.ttft_p95_s:g} s"),
        evidence=tuple(e for e in clue.evidence if e.observed is not None),
        ruled_out=clue.ruled_out,
        alternatives=tuple(Alternative(a.rule, round(a.confidence, 2)) for a in one.alternatives),
        culprits=(),
        changes=before.changes if before is not None else (),
        action=cure.action,
        advice=cure.advice,
        not_now=cure.not_now,
        symptoms=tuple(sorted(symptoms.values(), key=lambda x: (x.onset_at, x.rule))),
        links=_links(clue),
    )


def _worse(severity: Severity, before: Incident | None) -> Severity:
    """An answer to a riddle does no less harm than the riddle did."""
    return severity if before is None else min(severity, before.severity, key=_SEVERITY.__getitem__)


def _links(clue: Clue) -> dict[str, str]:
    return (
        {"runbook": f"runbooks/{clue.rule}.md"}
        if clue.rule in load_rules() or clue.rule == "unknown"
        else {"clues": "docs/clues.md"}
    )


def _family(clue: Clue) -> Family:
    return FAMILY_OF.get(clue.rule, "unknown")  # type: ignore[return-value]


def _subject(clue: Clue, s: Sighting) -> dict[str, Any]:
    """Who is sick. A host has no field of its own in the schema: its name stands as the engine's."""
    it = clue.subject
    seen = s.sights.get(it.key)
    model = seen.facts.get("model", "") if seen is not None else ""
    return {"engine": it.engine or it.host, "rank": it.rank, "gpu": it.gpu, "model": model}


def _second(at: float) -> float:
    return float(math.floor(at)) if math.isfinite(at) else 0.0
