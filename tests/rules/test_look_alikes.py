"""Toy worlds told apart: in each, one class happens by its own mechanism, and all others must stay silent.

These are the hard pairs: a drained batch, a blocked head and a full pool look alike on a page.
"""

import pytest

from gpuwatch.testing import START
from tests.rules import worlds
from tests.rules.worlds import Played

BOTH = pytest.mark.parametrize("sees", worlds.BOTH)


@BOTH
@pytest.mark.parametrize(
    ("world", "rules"),
    [
        ("steady", []),
        ("thrashing", ["batch_thrashing"]),
        ("one_giant", ["head_of_line_blocking"]),
        ("documents", ["long_context_kv_pressure"]),
        ("growth", ["overload"]),
        ("full_pool", ["overload"]),
        ("burst", ["traffic_surge"]),
        ("hang", ["engine_hang"]),
        ("long_prefill", []),
    ],
)
def test_a_world_is_told_by_its_mechanism_and_by_nothing_else(world, rules, sees):
    assert getattr(worlds, world)(sees).rules == rules


@BOTH
def test_batch_thrashing_has_its_trigger_onset_and_harm(sees):
    (incident,) = worlds.thrashing(sees).incidents
    assert (incident.mechanism, incident.severity) == ("head_admission", "page")
    assert incident.trigger.kind == "length_shift"
    assert 85 <= incident.onset_at - START <= 115
    assert 100 <= worlds.thrashing(sees).opened("batch_thrashing")[0] <= 170
    assert incident.impact.late_requests > 10


def test_until_the_third_cycle_it_is_unknown_and_then_answered():
    said = [(t.kind, t.incident.rule) for t in worlds.thrashing("ring").transitions]
    assert said == [("opened", "unknown"), ("resolved", "unknown"), ("opened", "batch_thrashing")]
    unknown = worlds.thrashing("ring").transitions[1].incident
    assert unknown.links["explained_by"] == worlds.thrashing("ring").incidents[0].id


@pytest.mark.parametrize("world", ["thrashing", "one_giant"])
def test_the_cure_cures(world):
    """The same demand under bypass admission is neither class: the label follows from mechanism and cure."""
    rules = getattr(worlds, world)("ring", admission="bypass").rules
    assert not {"batch_thrashing", "head_of_line_blocking"} & set(rules)


def test_the_ring_names_who_blocks_and_who_holds():
    for played, words in ((worlds.one_giant("ring"), "head of the queue"), (worlds.documents("ring"), "holds")):
        culprits = [c for _, f in played.findings(played.rules[0]) for c in f.culprits]
        assert any(c.detail.startswith(words) for c in culprits), words
        assert all(0 < c.share <= 1 for c in culprits)


@BOTH
def test_a_blocked_head_is_a_ticket_that_ends_when_it_is_admitted(sees):
    (incident,) = worlds.one_giant(sees).incidents
    assert incident.severity == "ticket"
    assert incident.status == "resolved"
    assert 60 <= incident.onset_at - START <= 70
    assert incident.resolved_at < START + 100


@BOTH
def test_a_hang_is_a_suspicion_first_and_a_page_after_a_minute(sees):
    """One witness: nothing destructive is said before time proves it."""
    played = worlds.hang(sees)
    opened = next(t for t in played.transitions if t.kind == "opened")
    worsened = next(t for t in played.transitions if t.kind == "worsened")
    assert (opened.incident.severity, opened.incident.action) == ("ticket", "observe")
    assert 68 <= opened.at - START <= 74
    assert (worsened.incident.severity, worsened.incident.action) == ("page", "restart")
    assert 118 <= worsened.at - START <= 125
    assert played.incidents[0].status == "resolved"
    assert abs(played.incidents[0].resolved_at - (START + 140)) <= 3


def test_an_idle_device_proves_a_hang_at_once():
    opened = next(t for t in worlds.hang("ring", gpu="GPU-1").transitions if t.kind == "opened")
    assert opened.incident.rule == "engine_hang"
    assert (opened.incident.severity, opened.incident.action) == ("page", "restart")
    assert opened.at - START < 75


@BOTH
def test_a_burst_is_dated_by_its_arrivals_and_over_with_its_queue(sees):
    (incident,) = worlds.burst(sees).incidents
    assert abs(incident.onset_at - (START + 60)) <= 5
    assert incident.trigger.kind == "traffic_surge"
    assert incident.resolved_at is not None
    assert worlds.burst(sees).ticks[-1].open == ()


def test_what_a_page_cannot_show_lowers_confidence():
    for world in (worlds.thrashing, worlds.one_giant, worlds.documents):
        ring, page = world("ring").incidents[0], world("page").incidents[0]
        assert page.confidence < ring.confidence, ring.rule


def both_see_harm(played: Played) -> bool:
    return all(t.incident.impact.breached or t.incident.severity != "page" for t in played.transitions)


@BOTH
@pytest.mark.parametrize("world", ["thrashing", "documents", "growth", "full_pool", "burst", "hang"])
def test_nobody_is_paged_without_a_breach(world, sees):
    assert both_see_harm(getattr(worlds, world)(sees))
