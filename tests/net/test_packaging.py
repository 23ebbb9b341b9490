"""The same calls give one verdict, however they are handed over; a capsule also repeats what happened meanwhile."""

from pathlib import Path

import pytest

from tests.net import ledger, packaging
from tests.net.packaging import met
from tests.net.product import replayed, to_json, write_capsule


@pytest.mark.parametrize("key", packaging.all_keys())
def test_a_packaging_gives_the_verdict_of_the_live_agent(key: str, tmp_path: Path):
    wrong = ledger.unlisted(key, packaging.compare(key, tmp_path))
    assert wrong == "", f"\n{wrong}"


@pytest.mark.parametrize("name", ["engine_hang-defaults", "unschedulable_request-defaults", "05-pool-held-for-hours"])
@pytest.mark.parametrize("from_s", [0, 70])
def test_a_capsule_repeats_the_transitions_and_the_verdict_to_the_byte(name: str, from_s: int, tmp_path: Path):
    live = met(name)
    _, transitions, verdict = replayed(write_capsule(tmp_path / "run.capsule", live.given, from_s=from_s))
    assert transitions == tuple(t for t in live.ran.transitions if t.at >= live.begin + from_s)
    assert to_json(verdict) == to_json(live.ran.running)


def test_what_is_compared_is_not_nothing():
    named = [name for name in (key.split("/")[1] for key in packaging.all_keys()) if met(name).outcome.verdict]
    assert len(set(named)) >= 10
