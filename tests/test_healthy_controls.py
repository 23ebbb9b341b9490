"""The healthy controls stay silent for ten simulated minutes each, whatever their load does. tests/nightly plays six hours."""

from functools import cache

import pytest

from tests.bench.scores.case import Case, expectation, stems
from tests.bench.scores.play import run

HEALTHY = [stem for stem in stems() if stem.startswith("healthy_")]
TEN_MINUTES_S = 600.0
played = cache(run)


@pytest.mark.parametrize("stem", HEALTHY)
def test_nothing_is_said_of_a_healthy_engine(stem: str):
    found = played(Case(stem, duration_s=TEN_MINUTES_S))
    assert found.seen == ()
    assert found.pages == 0, "not even for a moment"


def test_the_controls_are_of_every_kind_that_has_been_mistaken_for_an_incident():
    kinds = {"steady", "diurnal", "warm_up", "bursty", "periodic_load", "occasional_preemption", "prefill_backlog"}
    assert {f"healthy_{kind}" for kind in kinds | {"long_prefill"}} <= set(HEALTHY)
    assert all(expectation(stem)["class"] == "none" for stem in HEALTHY)


def test_occasional_preemption_is_what_it_says():
    """About one request in twelve loses its cache once: a control without preemptions would prove nothing."""
    truth = played(Case("healthy_occasional_preemption", duration_s=TEN_MINUTES_S)).truth
    assert truth is not None
    assert 0.04 <= truth.preempted / truth.requests <= 0.12
