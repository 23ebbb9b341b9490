"""What an incident may do in its life, whatever findings, harm and lifecycle come: a state machine against the tracker."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpuwatch.config import Slo
from gpuwatch.incidents.tracker import GAP_S, HARM_GRACE_S, RANK, REMIND_EVERY_S, Judged, Tracker
from gpuwatch.incidents.unknown import UNKNOWN
from gpuwatch.memory.baseline import Baseline
from gpuwatch.memory.view import Window
from gpuwatch.model import Finding, Incident, OpenStep, Transition
from gpuwatch.questions.harm import Harm
from gpuwatch.questions.latency import Felt
from gpuwatch.rules import load_rules
from gpuwatch.testing import window

RULES = load_rules()
STEMS = (
    "batch_thrashing",
    "engine_hang",
    "head_of_line_blocking",
    "long_context_kv_pressure",
    "overload",
    "traffic_surge",
)
QUIET = window(req_running=[4.0] * 30, req_waiting=[0.0] * 30)
QUIET.history.open_step = OpenStep(QUIET.subject, QUIET.now, QUIET.now, 0.0, 4.0, 4.0, 0.0)
"""A window that answers what an impact asks; what harm there is, the tests say themselves."""
LATE = Felt(0.4, 50.0, 5.0, 2.0, 8.0, 20.0)
HARM = {
    "none": Harm(False, False, False, "", None),
    "felt": Harm(True, True, False, "late", LATE),
    "acute": Harm(True, True, False, "late", LATE, True),
    "ticket": Harm(True, False, False, "the head has waited", LATE, True),
    "no_progress": Harm(True, True, True, "nothing moves", LATE, True),
}


def finding(stem: str, confidence: float, onset_at: float, proof: str = "") -> Finding:
    return Finding(stem, QUIET.subject, confidence, f"{stem} is happening", onset_at, proof=proof)


class LifeOfIncidents(RuleBasedStateMachine):
    """Seconds pass with any mixture of sure and unsure findings, harm and lifecycle."""

    @initialize()
    def start(self) -> None:
        self.tracker = Tracker(QUIET.subject, {"pool": "p"})
        self.now = QUIET.now
        self.said: list[Transition] = []
        self.last_sure: dict[str, float] = {}
        self.last_held: dict[str, float] = {}
        self.last_felt = -math.inf

    @rule(
        seconds=st.sampled_from([1, 4, 12, 50]),
        sure=st.sets(st.sampled_from(STEMS), max_size=3),
        unsure=st.sets(st.sampled_from(STEMS), max_size=2),
        harm=st.sampled_from(sorted(HARM)),
        lifecycle=st.sampled_from(["serving"] * 6 + ["warming", "maintenance", "gone"]),
        back_s=st.sampled_from([0, 3, 20]),
        proof=st.booleans(),
    )
    def seconds_pass(self, seconds, sure, unsure, harm, lifecycle, back_s, proof) -> None:
        onset_at = self.now - back_s
        for _ in range(seconds):
            self.now += 1.0
            found = tuple(finding(s, 0.9, onset_at, "seen twice" if proof else "") for s in sorted(sure))
            doubts = tuple(finding(s, 0.4, onset_at) for s in sorted(unsure - sure))
            w = Window(self.now, QUIET.history, (), Baseline(), Slo())
            judged = Judged(w, found, doubts, HARM[harm], lifecycle)
            if HARM[harm].felt:
                self.last_felt = self.now
            open_before = dict(self.tracker.open)
            new = self.tracker.judge(judged, RULES)
            for t in new:
                self.check(t, judged, open_before)
            self.last_sure.update(dict.fromkeys(sure, self.now))
            self.last_held.update(dict.fromkeys(sure | unsure, self.now))
            self.said += new
            self.judged = judged

    def check(self, t: Transition, j: Judged, open_before: dict) -> None:
        """What must hold at the moment of a transition."""
        i = t.incident
        assert t.at == self.now
        if t.kind == "opened":
            assert self.now - self.last_felt <= HARM_GRACE_S, "no incident without harm"
            assert j.lifecycle != "warming"
            assert i.onset_at <= self.now
            if j.lifecycle == "maintenance":
                assert i.severity == "info"
            if i.rule == "unknown":
                assert j.harm.acute
                assert not j.sure, "unknown while a rule is sure"
                assert not open_before, "unknown beside an incident"
        if i.severity == "page":
            assert i.rule != "head_of_line_blocking", "a rule caps its severity"
        if t.kind == "resolved" and i.rule != "unknown" and "explained_by" not in i.links:
            quiet_s = self.now - max(self.last_held.get(i.rule, -math.inf), self.last_sure.get(i.rule, -math.inf))
            assert quiet_s > RULES[i.rule].resolve_s - 1
        if i.action in ("restart", "drain_replica", "cordon_node"):
            assert i.severity != "page" or self.tracker_proof(i), "nothing destructive on one witness"

    def tracker_proof(self, i: Incident) -> bool:
        held = self.tracker.open.get(i.rule)
        return held is None or bool(held.finding.proof)

    @invariant()
    def transitions_are_well_formed(self) -> None:
        lives: dict[str, list[Transition]] = {}
        for t in self.said:
            lives.setdefault(t.incident.id, []).append(t)
        for name, life in lives.items():
            kinds = [t.kind for t in life]
            assert kinds[0] == "opened", name
            assert kinds.count("opened") == 1, name
            assert "resolved" not in kinds[:-1], name
            assert all(a.at <= b.at for a, b in pairwise(life))
            assert all(RANK[a.incident.severity] <= RANK[b.incident.severity] for a, b in pairwise(life)), "it fell"
            assert len({(t.incident.rule, t.incident.onset_at, t.incident.detected_at) for t in life}) == 1, (
                "it changed"
            )
            assert (kinds[-1] == "resolved") == (name not in {o.id for o in self.tracker.open.values()})

    @invariant()
    def causes_nest_their_symptoms(self) -> None:
        for cause in self.tracker.open:
            explains = UNKNOWN.explains if cause == "unknown" else RULES[cause].explains
            assert not set(explains) & self.tracker.open.keys(), "a symptom stands beside its cause"
        assert "unknown" not in self.tracker.open or len(self.tracker.open) == 1

    @invariant()
    def the_verdict_is_consistent(self) -> None:
        if not self.said:
            return
        shown = self.tracker.all(self.judged, RULES)
        assert len({i.id for i in shown}) == len(shown), "two incidents of one name"
        for i in shown:
            assert i.onset_at <= i.detected_at
            assert i.resolved_at is None or i.onset_at <= i.resolved_at <= self.now
            assert {s.rule for s in i.symptoms} <= set(RULES[i.rule].explains if i.rule != "unknown" else ())
            assert i.rule not in {a.rule for a in i.alternatives}
            assert i.scope == {"pool": "p"}


TestLifeOfIncidents = LifeOfIncidents.TestCase
TestLifeOfIncidents.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


class Story:
    """A tracker told second by second."""

    def __init__(self) -> None:
        self.tracker, self.now = Tracker(QUIET.subject, {}), QUIET.now

    def tell(self, seconds: int, *stems: str, harm: str = "acute", life: str = "serving", unsure: tuple[str, ...] = ()):
        said = []
        for _ in range(seconds):
            self.now += 1.0
            found = tuple(finding(s, 0.9, self.now - 5) for s in stems)
            doubts = tuple(finding(s, 0.4, self.now) for s in unsure)
            w = Window(self.now, QUIET.history, (), Baseline(), Slo())
            said += self.tracker.judge(Judged(w, found, doubts, HARM[harm], life), RULES)
        return [(t.kind, t.incident.rule) for t in said]


def test_a_finding_must_hold():
    story = Story()
    assert story.tell(4, "overload") == []
    assert story.tell(4) == []
    assert story.tell(RULES["overload"].for_s, "overload") == []
    assert story.tell(1, "overload") == [("opened", "overload")]


def test_a_short_gap_does_not_start_it_anew():
    story = Story()
    story.tell(3, "overload")
    story.tell(int(GAP_S) - 1)
    assert ("opened", "overload") in story.tell(3, "overload")


def test_a_cause_that_comes_later_takes_its_symptom_in():
    story = Story()
    assert story.tell(10, "head_of_line_blocking") == [("opened", "head_of_line_blocking")]
    assert story.tell(10, "head_of_line_blocking", "batch_thrashing") == [
        ("resolved", "head_of_line_blocking"), ("opened", "batch_thrashing"),
    ]  # fmt: skip
    (shown,) = story.tracker.open.values()
    assert set(shown.symptoms) == {"head_of_line_blocking"}


def test_a_symptom_that_comes_later_is_nested_and_not_said():
    story = Story()
    story.tell(10, "batch_thrashing")
    assert story.tell(20, "batch_thrashing", "overload") == []
    assert set(story.tracker.open["batch_thrashing"].symptoms) == {"overload"}


def test_what_is_unsure_opens_nothing_and_keeps_open_what_is():
    story = Story()
    assert story.tell(40, harm="felt", unsure=("overload",)) == []
    story.tell(10, "overload")
    assert story.tell(200, harm="felt", unsure=("overload",)) == []
    assert ("resolved", "overload") in story.tell(40, harm="none")


def test_harm_alone_is_unknown_later():
    story = Story()
    assert story.tell(44) == []
    assert story.tell(5) == [("opened", "unknown")]


def test_it_gets_worse_once_and_eases_once():
    story = Story()
    assert story.tell(10, "traffic_surge", harm="ticket") == [("opened", "traffic_surge")]
    assert story.tell(10, "traffic_surge", harm="acute") == [("worsened", "traffic_surge")]
    assert story.tell(90, "traffic_surge", harm="none") == [("eased", "traffic_surge")]


def test_a_long_incident_is_said_again_every_four_hours():
    story = Story()
    story.tell(10, "overload")
    assert story.tell(int(REMIND_EVERY_S), "overload").count(("reminder", "overload")) == 1


def test_warming_opens_nothing_and_maintenance_pages_nobody():
    assert Story().tell(60, "overload", life="warming") == []
    story = Story()
    assert ("opened", "overload") in story.tell(60, "overload", life="maintenance")
    assert story.tracker.open["overload"].severity == "info"


def test_a_rule_that_returns_with_its_old_onset_is_another_incident():
    """A cycle that pauses for minutes keeps its onset; what was resolved stays resolved."""
    tracker, now, said = Tracker(QUIET.subject, {}), QUIET.now, []
    for k in range(500):
        now += 1
        found = (finding("batch_thrashing", 0.9, QUIET.now),) if k < 60 or k > 300 else ()
        w = Window(now, QUIET.history, (), Baseline(), Slo())
        said += tracker.judge(Judged(w, found, (), HARM["felt"], "serving"), RULES)
    assert [t.kind for t in said] == ["opened", "resolved", "opened"]
    assert said[0].incident.id == said[1].incident.id != said[2].incident.id
    assert said[2].incident.onset_at > said[1].incident.resolved_at
