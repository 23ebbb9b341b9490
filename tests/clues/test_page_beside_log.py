"""A log beside pages: its ten-second means and its own sums are no looks of the page's kind."""

import pytest

from gpuwatch.clues.moments import moments
from gpuwatch.clues.sighting import gather
from tests.clues.looks import ENGINE, Evidence


def seen(evidence: Evidence):
    return moments(gather(evidence.calls).sight(ENGINE))


def test_a_pages_counters_are_not_subtracted_from_a_logs_nor_smoothed_by_its_mean():
    evidence = Evidence()
    for at in range(30):
        evidence.look(
            at, source="log", generated_tokens_total=40.0 * at, generated_tokens_per_second=40.0, req_running=2.0
        )
    for at in range(2, 30, 5):  # stands still for ten seconds, then moves
        tokens = 9000.0 if at < 13 else 9000.0 + 80 * (at - 12)
        evidence.look(at, generated_tokens_total=tokens, req_running=8.0)
    rates = [(round(m.at) % 100, m.generated) for m in seen(evidence) if m.generated == m.generated]
    assert [rate for _, rate in rates] == pytest.approx([0, 0, 80, 80, 80])


def test_a_logs_old_level_does_not_stand_between_two_looks_at_the_page():
    evidence = Evidence()
    for at in range(20):
        evidence.look(at, source="log", req_running=2.0)
    for at in range(0, 20, 5):
        evidence.look(at, req_running=8.0)
    assert {m.running for m in seen(evidence)} == {8.0}


def test_a_log_alone_is_read_by_its_own_rates():
    evidence = Evidence()
    for at in range(0, 40, 10):
        evidence.line(at, gen=40.0, running=2.0)
    assert {m.generated for m in seen(evidence)} == {40.0}
    counted = Evidence()
    for at in range(0, 40, 10):
        counted.look(at, source="log", generated_tokens_total=40.0 * at)
    assert [m.generated for m in seen(counted)][1:] == [40.0] * 3
