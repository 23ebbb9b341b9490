"""The overload study's claim, in a short run: goodput is flat at three times the capacity, or gone without protection."""

import pytest

from engine_shim.studies import overload

SECONDS = 75.0


@pytest.fixture(scope="module")
def full() -> overload.Row:
    """What the engine does at nine tenths of its capacity."""
    return overload.measure("none", 0.9, SECONDS)


def test_without_protection_goodput_collapses(full: overload.Row) -> None:
    """The device is as busy as ever, and nothing that it does is in time."""
    none = overload.measure("none", 3.0, SECONDS)
    assert none.goodput_per_s < 0.05 * full.goodput_per_s
    assert none.served_per_s > 0.9 * full.served_per_s


@pytest.mark.parametrize(
    "protection", ["concurrency cap", "queue length", "queued tokens", "deadlines", "all late ones"]
)
def test_with_protection_goodput_stays(full: overload.Row, protection: str) -> None:
    """As much is served in time as at full load, and what is let in meets the objective."""
    row = overload.measure(protection, 3.0, SECONDS)
    assert row.goodput_per_s > 0.95 * full.goodput_per_s
    assert row.ttft_p95_s < overload.OBJECTIVE_S
    assert row.refused_per_s == pytest.approx(row.offered_per_s - row.served_per_s, rel=0.15)


def test_a_limit_that_follows_the_service_rate_survives_longer_answers() -> None:
    """Answers become four times as long: the fixed cap lets in what waits too long, the others adapt."""
    fixed, follows = (
        overload.measure(protection, 3.0, 120.0, longer=4) for protection in ("concurrency cap", "queue length")
    )
    assert fixed.goodput_per_s < 0.2 * fixed.served_per_s
    assert follows.goodput_per_s > 0.8 * follows.served_per_s
