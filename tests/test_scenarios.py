"""Every scenario gets the verdict that it asks for: class, time, trigger, symptoms; and its cure makes the incident go away.

The engine plays in virtual time, the agent reads the capture. tests/nightly has hours, seeds and devices.
"""

from functools import cache
from io import BytesIO

import pytest

from gpuwatch.incidents.verdict import to_json
from tests.bench.scores.case import Case, expectation, has_cure, stems
from tests.bench.scores.judge import CURED_LATE_RATIO, deviations, is_harmful
from tests.bench.scores.play import Run, judged, run, world_of

CLASSES = [stem for stem in stems() if expectation(stem)["class"] != "none"]
FOUNDING = "batch_thrashing"
played = cache(run)
each_class = pytest.mark.parametrize("stem", CLASSES)


@each_class
@pytest.mark.parametrize(("device", "seed"), [("h100", 1), ("a100", 2)])
def test_the_verdict_is_what_the_scenario_expects(stem: str, device: str, seed: int):
    """Exactly one incident at the top, of the expected class, in time, with its trigger; all else is nested in it."""
    found = played(Case(stem, device, seed))
    assert deviations(found) == (), found
    assert not is_harmful(found)


@each_class
def test_the_cure_makes_the_incident_go_away_on_the_same_demand(stem: str):
    """The label is what the mechanism says: without it the class is gone, and so are most late requests."""
    assert has_cure(stem)
    sick, cured = played(Case(stem)), played(Case(stem, cured=True))
    assert expectation(stem)["class"] not in [s.rule for s in cured.seen]
    assert sick.truth is not None
    assert cured.truth is not None
    assert sick.truth.late > 0
    assert cured.truth.late <= CURED_LATE_RATIO * sick.truth.late


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_the_founding_case_is_found_whatever_the_seed(seed: int):
    assert deviations(played(Case(FOUNDING, seed=seed))) == ()


def test_pages_and_otlp_on_the_wire_give_the_same_class_as_the_engine_s_own_records():
    stem = "head_of_line_blocking"
    assert played(Case(stem, mode="wire")).top == played(Case(stem)).top == stem


def test_vllm_s_defaults_suffice_for_the_founding_case_and_what_they_hide_is_said():
    """A page and a stock dcgm-exporter, no ring, no spans: the class is named, with less confidence."""
    bare, full = played(Case(FOUNDING, mode="vllm-defaults")), played(Case(FOUNDING))
    assert [s.rule for s in bare.seen] == [FOUNDING]
    assert bare.seen[0].confidence < full.seen[0].confidence
    unseen = [e.observed for e in incident_of(bare).evidence if str(e.observed).startswith("not seen")]
    assert len(unseen) >= 3


def incident_of(found: Run):
    """The whole incident behind the first line of a run."""
    return judged(BytesIO(world_of(found.case))).verdict().incidents[0]


def test_the_same_seed_gives_the_same_world_and_the_same_verdict_to_the_last_byte():
    case = Case("head_of_line_blocking", seed=7)
    first, second = world_of(case), world_of(case)
    assert first == second
    assert to_json(judged(BytesIO(first)).verdict()) == to_json(judged(BytesIO(second)).verdict())


def test_another_seed_is_another_world():
    """Or the check above could not fail."""
    assert world_of(Case("engine_hang", seed=1)) != world_of(Case("engine_hang", seed=2))
