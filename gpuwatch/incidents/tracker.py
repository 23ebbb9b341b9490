"""Findings become incidents: pending, open, resolved, with harm gate, severity, symptoms, alternatives and `unknown`.

One `Tracker` a subject. A finding must hold for the rule's `for_s` while harm is felt before an incident opens; it is
resolved when the finding has been absent for `resolve_s`. What an open incident explains is nested in it as a symptom; when
a cause opens after its symptom, the symptom is closed with a link to it. Harm that no rule explains opens `unknown`.
"""

from __future__ import annotations

import math
from hashlib import blake2s
from typing import NamedTuple

import msgspec

from ..memory.view import Window
from ..model import (
    Alternative,
    Finding,
    Impact,
    Incident,
    Lifecycle,
    Missing,
    Severity,
    Subject,
    Symptom,
    Transition,
    Trigger,
)
from ..questions.harm import Harm, impact
from ..questions.latency import ACUTE_S
from ..questions.moved import listed_changes, trigger
from ..questions.queue import queue
from ..questions.rhythm import rhythm
from ..rules import Rule
from .unknown import UNKNOWN, unknown_finding

SURE = 0.5
GAP_S = 3.0
"""A finding may be absent for so long without starting anew."""
HARM_GRACE_S = 15.0
"""Harm felt this recently still counts: its measures lag by a window."""
UNKNOWN_AFTER_S = 45.0
RECURRENT_UNKNOWN_AFTER_S = 20.0
TOGETHER_S = 120.0
"""An episode that ended so shortly before its cause was named belongs to it."""
TRIGGER_KNOWN_S = 120.0
"""What set an incident off is seen by then; what moves later is another story."""
AFTERMATH_S = 120.0
"""So long may the backlog of an incident that is over make requests late; it is no incident of its own."""
EASED_AFTER_S = 60.0
REMIND_EVERY_S = 4 * 3600.0
KEPT = 500
RANK: dict[Severity, int] = {"info": 0, "ticket": 1, "page": 2}


class Pending(msgspec.Struct):
    """A rule that holds, and since when."""

    since: float
    last: float


class OpenIncident(msgspec.Struct):
    """An incident that is open: what was worst so far, and what belongs to it."""

    id: str
    rule: str
    onset_at: float
    detected_at: float
    severity: Severity
    finding: Finding
    worst: float
    impact: Impact
    trigger: Trigger | None
    last: float
    harmed_at: float
    said_at: float
    eased: bool = False
    symptoms: dict[str, Symptom] = {}
    alternatives: dict[str, float] = {}


class Judged(NamedTuple):
    """What the tick knows of one engine: its window, the rules' findings, harm and lifecycle."""

    window: Window
    sure: tuple[Finding, ...]
    unsure: tuple[Finding, ...]
    harm: Harm
    lifecycle: Lifecycle


class Tracker:
    """The incidents of one subject. `scope` and `links` are copied into each."""

    def __init__(self, subject: Subject, scope: dict[str, str]) -> None:
        self.subject = subject
        self.scope = scope
        self.pending: dict[str, Pending] = {}
        self.open: dict[str, OpenIncident] = {}
        self.closed: list[Incident] = []
        self.harm_since = math.nan
        self.harm_last = -math.inf
        self.acute_since = math.nan
        self.acute_last = -math.inf
        self.ended_at = -math.inf  # when the last incident ended: its backlog is no new incident
        self.left_waiting = 0.0  # the longest queue of its last two minutes
        self.over: dict[str, float] = {}  # rule -> when its last incident ended: another one begins later

    def judge(self, j: Judged, rules: dict[str, Rule]) -> list[Transition]:
        """One tick: open, update, nest, resolve."""
        now = j.window.now
        self._feel(now, j.harm)
        out: list[Transition] = []
        for finding in j.sure:
            self._hold(finding.rule, now)
        self.pending = {r: p for r, p in self.pending.items() if now - p.last <= GAP_S}
        explained = {s for r in self.open for s in _rule(rules, r).explains}
        for finding in j.sure:
            if finding.rule in self.open:
                self._update(self.open[finding.rule], finding, j, rules, out)
            elif finding.rule in explained:
                self._nest(finding, rules)
            elif self._ready(finding, j, rules):
                self._open(finding, j, rules, out)
                explained |= set(rules[finding.rule].explains)
        for finding in j.unsure:  # too little to open an incident, enough to keep one open
            if finding.rule in self.open:
                self.open[finding.rule].last = now
        self._unknown(j, rules, out)
        self._resolve(j, rules, out)
        self._remind(now, j, rules, out)
        return out

    def all(self, j: Judged | None, rules: dict[str, Rule]) -> list[Incident]:
        """Every incident so far, open ones as they are now."""
        return [*self.closed, *(self._incident(o, j, rules) for o in self.open.values())]

    # --- harm ----------------------------------------------------------------------------------------------------

    def _feel(self, now: float, harm: Harm) -> None:
        if harm.felt:
            if math.isnan(self.harm_since):
                self.harm_since = now
            self.harm_last = now
        elif now - self.harm_last > HARM_GRACE_S:
            self.harm_since = math.nan
        if harm.acute:
            if math.isnan(self.acute_since):
                self.acute_since = now
            self.acute_last = now
        elif now - self.acute_last > ACUTE_S:
            self.acute_since = math.nan

    def _harmed(self, now: float) -> bool:
        return now - self.harm_last <= HARM_GRACE_S

    # --- life of an incident -------------------------------------------------------------------------------------

    def _hold(self, rule: str, now: float) -> None:
        held = self.pending.get(rule)
        if held is None or now - held.last > GAP_S:
            self.pending[rule] = Pending(now, now)
        else:
            held.last = now

    def _ready(self, finding: Finding, j: Judged, rules: dict[str, Rule]) -> bool:
        now = j.window.now
        held_s = now - self.pending[finding.rule].since
        return held_s >= rules[finding.rule].for_s and self._harmed(now) and j.lifecycle != "warming"

    def _open(self, finding: Finding, j: Judged, rules: dict[str, Rule], out: list[Transition]) -> None:
        now, onset = j.window.now, _whole(finding.onset_at)
        if (over := self.over.get(finding.rule, -math.inf)) >= onset:
            onset = _whole(over) + 1
        o = OpenIncident(
            id=_id(finding.rule, self.subject, onset),
            rule=finding.rule,
            onset_at=onset,
            detected_at=now,
            severity=_severity(finding, j, _rule(rules, finding.rule)),
            finding=finding,
            worst=_badness(j),
            impact=impact(j.window, j.harm, onset),
            trigger=finding.trigger or trigger(j.window, onset),
            last=now,
            harmed_at=now,
            said_at=now,
            alternatives={f.rule: f.confidence for f in j.unsure if f.rule != finding.rule},
        )
        self._absorb(o, j, rules, out)
        self.open[finding.rule] = o
        out.append(Transition("opened", now, self._incident(o, j, rules)))

    def _absorb(self, o: OpenIncident, j: Judged, rules: dict[str, Rule], out: list[Transition]) -> None:
        """What the new incident explains is nested in it, open or just over; `unknown` is answered by it."""
        explains = {*_rule(rules, o.rule).explains, "unknown"}
        for stem in sorted(explains & self.open.keys()):
            symptom = self.open.pop(stem)
            self.over[stem] = j.window.now
            if stem != "unknown":
                o.symptoms[stem] = Symptom(stem, symptom.onset_at, symptom.finding.summary)
            said = self._incident(symptom, j, rules, resolved_at=j.window.now)
            out.append(Transition("resolved", j.window.now, _linked(said, explained_by=o.id)))
        near = o.onset_at - TOGETHER_S
        for incident in [i for i in self.closed if i.rule in explains and (i.resolved_at or 0.0) >= near]:
            self.closed.remove(incident)
            if incident.rule != "unknown":
                o.symptoms[incident.rule] = Symptom(incident.rule, incident.onset_at, incident.summary)

    def _update(
        self, o: OpenIncident, finding: Finding, j: Judged, rules: dict[str, Rule], out: list[Transition]
    ) -> None:
        now = j.window.now
        o.last = now
        o.alternatives.update({f.rule: f.confidence for f in j.unsure if f.rule != o.rule})
        if o.trigger is None and now - o.detected_at <= TRIGGER_KNOWN_S:
            o.trigger = trigger(j.window, o.onset_at)
        if j.harm.felt:
            o.harmed_at = now
        bad = _badness(j)
        if bad >= o.worst or finding.confidence > o.finding.confidence:
            o.worst, o.finding = max(bad, o.worst), finding
            o.impact = impact(j.window, j.harm, o.onset_at)
        else:
            late = impact(j.window, j.harm, o.onset_at).late_requests
            o.impact = msgspec.structs.replace(o.impact, late_requests=max(o.impact.late_requests or 0.0, late or 0.0))
        severity = _severity(finding, j, _rule(rules, o.rule))
        if RANK[severity] > RANK[o.severity]:
            o.severity, o.said_at, o.eased = severity, now, False
            out.append(Transition("worsened", now, self._incident(o, j, rules)))
        elif not o.eased and now - o.harmed_at > EASED_AFTER_S:
            o.eased, o.said_at = True, now
            out.append(Transition("eased", now, self._incident(o, j, rules)))

    def _nest(self, finding: Finding, rules: dict[str, Rule]) -> None:
        for o in self.open.values():
            if finding.rule in _rule(rules, o.rule).explains:
                o.symptoms.setdefault(finding.rule, Symptom(finding.rule, _whole(finding.onset_at), finding.summary))

    def _unknown(self, j: Judged, rules: dict[str, Rule], out: list[Transition]) -> None:
        now = j.window.now
        open_unknown = self.open.get("unknown")
        if math.isnan(self.acute_since) or j.lifecycle in ("warming", "maintenance"):
            return
        if any(r != "unknown" for r in self.open):
            return
        finding = unknown_finding(j.window, j.sure + j.unsure, j.harm.why, self.acute_since)
        if open_unknown is not None:
            self._update(open_unknown, finding, j, rules, out)
            return
        recurs = j.window.maybe(rhythm)
        after_s = RECURRENT_UNKNOWN_AFTER_S if recurs and recurs.cycles >= 1 and recurs.current else UNKNOWN_AFTER_S
        if now - self.acute_since >= after_s and j.harm.acute and not self.pending and not self._is_backlog(j):
            self._open(finding, j, rules, out)

    def _is_backlog(self, j: Judged) -> bool:
        """Whether the harm is what the last incident left behind: its queue drains, or never grew beyond what it was."""
        q = j.window.once(queue)
        if j.window.now - self.ended_at > AFTERMATH_S:
            return False
        return q.trend in ("draining", "empty") or (q.waiting or 0.0) <= self.left_waiting

    def _resolve(self, j: Judged, rules: dict[str, Rule], out: list[Transition]) -> None:
        now = j.window.now
        for stem in [s for s, o in self.open.items() if now - o.last > _rule(rules, s).resolve_s]:
            o = self.open.pop(stem)
            incident = self._incident(o, j, rules, resolved_at=o.last)
            self.closed.append(incident)
            self.ended_at, self.over[stem] = now, o.last
            self.left_waiting = _peak_waiting(j)
            self.acute_since = math.nan  # harm from here on must last anew before it is a riddle of its own
            del self.closed[:-KEPT]
            out.append(Transition("resolved", now, incident))

    def _remind(self, now: float, j: Judged, rules: dict[str, Rule], out: list[Transition]) -> None:
        for o in self.open.values():
            if now - o.said_at >= REMIND_EVERY_S:
                o.said_at = now
                out.append(Transition("reminder", now, self._incident(o, j, rules)))

    def _incident(
        self, o: OpenIncident, j: Judged | None, rules: dict[str, Rule], resolved_at: float | None = None
    ) -> Incident:
        rule, f = _rule(rules, o.rule), o.finding
        model = j.window.history.info.get("model", "") if j else ""
        suspicion = rule.action in ("restart", "drain_replica", "cordon_node") and not f.proof
        best = sorted(o.alternatives.items(), key=lambda a: (-a[1], a[0]))[:2]
        blamed = o.trigger.at if o.trigger and o.trigger.kind == "change" else None
        return Incident(
            id=o.id,
            rule=o.rule,
            family=rule.family,
            severity=o.severity,
            confidence=f.confidence,
            subject={"engine": self.subject.engine, "rank": self.subject.rank, "gpu": _gpu_of(j), "model": model},
            scope=self.scope,
            status="open" if resolved_at is None else "resolved",
            onset_at=o.onset_at,
            detected_at=o.detected_at,
            resolved_at=resolved_at,
            summary=f.summary,
            mechanism=f.mechanism,
            trigger=o.trigger,
            impact=o.impact,
            evidence=f.evidence,
            ruled_out=f.ruled_out,
            alternatives=tuple(Alternative(r, c) for r, c in best),
            culprits=f.culprits,
            changes=listed_changes(j.window, o.onset_at, blamed) if j else (),
            action="observe" if suspicion else rule.action,
            advice=tuple(a for a in rule.advice if a.mechanism in ("", f.mechanism)),
            not_now=rule.not_now,
            symptoms=tuple(sorted(o.symptoms.values(), key=lambda s: (s.onset_at, s.rule))),
            links={"runbook": f"runbooks/{o.rule}.md"},
        )


def _severity(finding: Finding, j: Judged, rule: Rule) -> Severity:
    """Harm decides, the rule caps; an action that nobody can undo needs a second witness; maintenance is info."""
    if j.lifecycle == "maintenance":
        return "info"
    if j.harm.no_progress and rule.action == "restart":
        wanted: Severity = "page" if finding.proof else "ticket"
    elif j.harm.breached:
        wanted = "page"
    else:
        wanted = "ticket"
    return wanted if RANK[wanted] <= RANK[rule.severity] else rule.severity


def _badness(j: Judged) -> float:
    """How bad it is, to keep the worst moment's evidence: late share first, then the queue."""
    good = j.harm.now.good_ratio if j.harm.now else 1.0
    return (1 - good) + min(1.0, _waiting(j) / 1e4)


def _waiting(j: Judged) -> float:
    try:
        return j.window.level("req_waiting")
    except Missing:
        return 0.0


def _peak_waiting(j: Judged) -> float:
    try:
        return j.window.greatest("req_waiting", AFTERMATH_S, thin=0.05)
    except Missing:
        return 0.0


def _rule(rules: dict[str, Rule], stem: str) -> Rule:
    return UNKNOWN if stem == "unknown" else rules[stem]


def _gpu_of(j: Judged | None) -> str:
    return ",".join(g.subject.gpu for g in j.window.gpus[:8]) if j else ""


def _linked(incident: Incident, **links: str) -> Incident:
    return msgspec.structs.replace(incident, links={**incident.links, **links})


def _whole(at: float) -> float:
    return float(math.floor(at))


def _id(rule: str, subject: Subject, onset_at: float) -> str:
    return blake2s(f"{rule}|{subject.key}|{onset_at:.0f}".encode(), digest_size=6).hexdigest()
