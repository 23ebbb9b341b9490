"""Clues beside what the rules said: what stays, what is nested, what is answered; and what the material cannot tell."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.catalog import CATALOG
from gpuwatch.clues import cannot_tell, judge
from gpuwatch.clues.remedies import remedy, written
from gpuwatch.clues.sighting import gather
from gpuwatch.clues.track import LOOKS, Sight
from gpuwatch.clues.weigh import candidates
from gpuwatch.config import Config
from gpuwatch.model import Batch, Event, Frame, Incident, Subject, Symptom, Verdict
from gpuwatch.rules import load_rules
from gpuwatch.rules.families import FAMILY_OF
from gpuwatch.sources.logs.kinds import NOTICES
from tests.agent.builders import incident
from tests.clues.looks import ENGINE, START, Evidence, judged

NOTHING = Verdict(1, (), None, (), ())


def with_incident(rule: str, **changes: object) -> Verdict:
    made = incident(rule=rule, subject={"engine": "e1", "rank": 0, "gpu": "", "model": ""}, onset_at=START, **changes)
    return msgspec.structs.replace(NOTHING, incidents=(made,))


def queue_before_room() -> Evidence:
    evidence = Evidence()
    for n in range(4):
        evidence.line(10 * n, running=6, waiting=1, kv=0.6, gen=90.0, prompt=0.0)
    return evidence


def test_what_a_rule_named_stays_and_takes_the_clue_in():
    said = judge(queue_before_room().calls, with_incident("long_context_kv_pressure"), Config())
    assert [i.rule for i in said.incidents] == ["long_context_kv_pressure"]
    assert "head_of_line_blocking" in {s.rule for s in said.incidents[0].symptoms}


def test_a_symptom_is_nested_once():
    already = Symptom("head_of_line_blocking", START, "the rule's own words")
    said = judge(queue_before_room().calls, with_incident("engine_hang", symptoms=(already,)), Config())
    assert said.incidents[0].symptoms == (already,)


def test_the_same_class_takes_the_numbers_it_lacks():
    said = judge(queue_before_room().calls, with_incident("head_of_line_blocking"), Config())
    assert {e.signal for e in said.incidents[0].evidence} >= {"req_waiting", "kv_usage_ratio"}


def test_unknown_is_answered_and_keeps_its_onset():
    said = judge(queue_before_room().calls, with_incident("unknown"), Config())
    assert [(i.rule, i.onset_at) for i in said.incidents] == [("head_of_line_blocking", START)]


def test_a_message_that_names_another_cause_stands_beside_the_rules_answer():
    evidence = queue_before_room().say(5, "slow_kernel_fallback", method="awq")
    said = judge(evidence.calls, with_incident("long_context_kv_pressure"), Config())
    assert {i.rule for i in said.incidents} == {"long_context_kv_pressure", "quantization_fallback"}


def test_nothing_seen_is_nothing_said():
    assert judge([], NOTHING, Config()) == NOTHING
    assert cannot_tell([]) == []


def test_ids_are_those_of_the_class_the_subject_and_the_second():
    a, b = judged(queue_before_room()), judged(queue_before_room())
    assert [i.id for i in a] == [i.id for i in b]
    assert len({i.id for i in a}) == len(a)


def test_one_look_says_what_it_cannot_tell():
    told = cannot_tell(Evidence().look(0, req_running=4, req_waiting=0).calls)
    assert told[0].startswith("One look")
    assert any("No device" in line for line in told)
    more = Evidence()
    for n in range(10):
        more.look(20 * n, req_running=4, req_waiting=0, generated_tokens_total=n).gpu(20 * n, util=0.5)
    assert not any(line.startswith("One look") or "No device" in line for line in cannot_tell(more.calls))


def test_utilisation_of_an_instance_is_said_to_mean_nothing():
    evidence = Evidence("").gpu_facts("GPU-1/2", mig_profile="2g.20gb").gpu(0, "GPU-1/2", gr=0.8)
    assert any("MIG instance (2g.20gb)" in line and "80%" in line for line in cannot_tell(evidence.calls))


def test_a_page_without_counters_cannot_tell_a_hang():
    evidence = Evidence().look(0, req_running=4, req_waiting=0).look(10, req_running=4, req_waiting=0)
    assert any("a hang and a busy engine look alike" in line for line in cannot_tell(evidence.calls))


@pytest.mark.parametrize("stem", sorted(set(FAMILY_OF) - set(load_rules())))
def test_every_class_without_a_rule_has_a_first_action(stem: str):
    assert stem in written(), f"{stem}: nothing in remedies.toml"
    assert remedy(stem, "").action in (
        "observe",
        "limit_client",
        "reroute",
        "scale",
        "rollback",
        "redeploy_tuned",
        "fix_telemetry",
    )


def test_remedies_are_of_known_classes_and_no_rule_s_advice_is_doubled():
    assert set(written()) <= set(FAMILY_OF) - set(load_rules())
    for cure in written().values():
        for advice in cure.advice:
            assert advice.do
            assert advice.knob
            assert advice.verify


@pytest.mark.parametrize("stem", ["engine_hang", "gpu_hardware_fault", "engine_crash", "capacity_loss"])
def test_short_evidence_restarts_and_drains_nothing(stem: str):
    assert remedy(stem, "").action not in ("restart", "drain_replica", "cordon_node")


def test_a_class_that_fails_costs_itself_only_and_is_said(monkeypatch):
    from gpuwatch.clues.classes import kv_pressure

    def broken(_: object) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr(kv_pressure, "clues", broken)
    said = judge(queue_before_room().calls, NOTHING, Config())
    assert [i.rule for i in said.incidents] == ["head_of_line_blocking"]
    assert [(b.rule, b.missing) for b in said.blind] == [("kv_pressure", ("its clue failed: RuntimeError: no idea",))]


def test_a_device_that_tells_nothing_but_zeros_is_judged():
    zeros = Evidence().gpu(0, clock=0, clock_max=0, power=0, power_limit=0, util=0, used=0, energy=0)
    assert judge(zeros.look(0, req_running=0, req_waiting=0).calls, NOTHING, Config()) == NOTHING


def test_memory_is_bounded_however_long_the_recording():
    sight = Sight(ENGINE)
    for n in range(20 * LOOKS):
        sight.take_look(START + n, {"req_running": float(n)})
    assert len(sight.looks) <= LOOKS + 1
    assert sight.looks[0][1]["req_running"] == 0
    assert sight.looks[-1][1]["req_running"] == 20 * LOOKS - 1


numbers = st.one_of(st.just(math.nan), st.floats(0, 1e9), st.sampled_from([0.0, 1.0, 0.5]))
subjects = st.sampled_from(
    [Subject("e1"), Subject("e1", 1), Subject("e2"), Subject(gpu="g"), Subject(gpu="g/1"), Subject(host="h")]
)
names = st.lists(
    st.sampled_from(sorted(n for n, s in CATALOG.items() if s.kind != "histogram")), unique=True, max_size=8
)
details = st.dictionaries(
    st.sampled_from(["kind", "code", "seconds", "count", "rank", "asked_bytes", "x"]), st.text(max_size=6)
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    subject, at = draw(subjects), START + draw(st.floats(0, 400))
    signals = tuple(draw(names))
    values = np.array([[draw(numbers) for _ in signals]]).reshape(1, len(signals))
    frames = (Frame(subject, draw(st.sampled_from(["page", "log", "dcgm"])), signals, np.array([at]), values),)
    detail = {**draw(details), "kind": draw(st.sampled_from(sorted(NOTICES)))}
    events = (Event(subject, at, draw(st.sampled_from(["notice", "restart", "xid", "ambiguous"])), detail),)
    error = draw(st.sampled_from([None, None, "no engine series on the page", "timeout"]))
    return Batch(
        "s",
        draw(st.sampled_from(["engine", "gpu", "log", "host"])),
        subject,
        at,
        frames=frames,
        events=events,
        error=error,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(batches(), max_size=12))
def test_whatever_comes_is_judged_without_a_crash_and_in_bounds(told: list[Batch]):
    calls = [(b.received_at, (b,)) for b in sorted(told, key=lambda b: b.received_at)]
    said = judge(calls, NOTHING, Config())
    assert said == judge(calls, NOTHING, Config())
    assert said.blind == (), "a class has failed"
    for found in said.incidents:
        assert_sound(found)
    assert all(0 < c.confidence <= 0.95 for c in candidates(gather(calls)))
    msgspec.json.encode(said)


def assert_sound(found: Incident) -> None:
    assert found.rule == "unknown" or found.rule in FAMILY_OF
    assert 0 < found.confidence <= 0.95
    assert len(found.alternatives) <= 2
    assert found.rule not in {a.rule for a in found.alternatives}
    assert not (found.severity == "page" and found.action == "restart")
    assert all(e.observed is not None for e in found.evidence)
