"""The mathematics of the questions on series whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.stats import bucket_quantile, drain_refill_cycles, period, quantile, rate_change, slope, trailing_quantile

rng = np.random.default_rng(7)


def saw(cycles: int, full: float = 40, low: float = 6, drain: int = 10, refill: int = 4, flat: int = 6) -> np.ndarray:
    """A running set that drains and refills: flat, drain, refill, again and again."""
    one = np.concatenate([np.full(flat, full), np.linspace(full, low, drain), np.linspace(low, full, refill)])
    return np.concatenate([np.full(60, full), *([one] * cycles), np.full(10, full)])


def count(running: np.ndarray, waiting: np.ndarray) -> int:
    return len(drain_refill_cycles(running, waiting, trailing_quantile(running, 60, 0.9))[0])


@pytest.mark.parametrize("cycles", [0, 1, 3, 8])
def test_drain_refill_cycles_are_counted_while_requests_wait(cycles):
    running = saw(cycles)
    assert count(running, np.full(len(running), 5.0)) == cycles


@pytest.mark.parametrize(
    ("running", "waiting"),
    [
        (saw(5), np.zeros(200)),
        (saw(5, low=25), np.full(200, 5.0)),
        (saw(5, full=3, low=0), np.full(200, 5.0)),
        (40 + rng.normal(0, 4, 300), np.full(300, 5.0)),
        (rng.poisson(20, 300).astype(float), (rng.random(300) < 0.3).astype(float)),
        (np.linspace(40, 2, 300), np.full(300, 5.0)),
    ],
    ids=["nobody waits", "swing too small", "no batch to lose", "noise", "poisson load", "one drain, no refill"],
)
def test_what_is_no_cycle_is_not_counted(running, waiting):
    assert (
        count(running, waiting[: len(running)] if len(waiting) >= len(running) else np.resize(waiting, len(running)))
        == 0
    )


def test_a_cycle_says_where_it_fell_was_lowest_and_came_back():
    running = saw(1)
    ((fell, trough, refilled, swing),), still = drain_refill_cycles(
        running, np.full(len(running), 3.0), np.full(len(running), 40.0)
    )
    assert running[trough] == running.min()
    assert fell <= trough < refilled
    assert running[refilled] >= 0.7 * 40
    assert swing == pytest.approx(1 - 6 / 40)
    assert still == -1


def test_a_drain_that_goes_on_is_told_as_such():
    running = np.concatenate([np.full(60, 40.0), np.linspace(40, 5, 12)])
    cycles, since = drain_refill_cycles(running, np.full(72, 3.0), np.full(72, 40.0))
    assert cycles == []
    assert 60 <= since < 72


def test_seconds_that_are_not_known_neither_make_nor_break_a_cycle():
    running = saw(4)
    holes = running.copy()
    holes[::7] = math.nan
    assert count(holes, np.full(len(holes), 5.0)) == 4


@given(
    st.lists(st.one_of(st.floats(-100, 100), st.just(math.nan)), min_size=1, max_size=60),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_trailing_quantile_is_the_quantile_of_the_last_values(values, window, q):
    got = trailing_quantile(np.array(values), window, q)
    for i, answer in enumerate(got):
        held = sorted(v for v in values[max(0, i - window + 1) : i + 1] if not math.isnan(v))
        expected = held[min(len(held) - 1, int(q * len(held)))] if held else math.nan
        assert answer == expected or (math.isnan(answer) and math.isnan(expected))


@pytest.mark.parametrize("cells", [8, 18, 40])
def test_period_of_a_regular_swing(cells):
    t = np.arange(400)
    found = period(20 + 10 * np.sin(2 * np.pi * t / cells) + rng.normal(0, 1, 400))
    assert found is not None
    assert found.cells == pytest.approx(cells, rel=0.05)
    assert found.regularity > 1
    assert found.peak > 0.5


def test_random_load_is_not_periodic():
    """Random load has peaks in its autocorrelation too, but they are low or irregular."""
    for seed in range(40):
        arrivals = np.random.default_rng(seed).poisson(4, 600)
        running = np.convolve(arrivals, np.exp(-np.arange(120) / 20), "valid")[:300]  # exponential service, mean 20 s
        found = period(running)
        assert found is None or found.peak <= 0.5 or found.regularity <= 1


def test_period_refuses_what_it_cannot_resolve():
    t = np.arange(300)
    assert period(np.full(300, 7.0)) is None
    assert period(np.full(300, math.nan)) is None
    assert period(np.sin(2 * np.pi * t / 3)) is None, "fewer than four samples a cycle"
    assert period(np.sin(2 * np.pi * t[:12] / 6)) is None, "too short"


def test_rate_change_finds_a_step_and_dates_it():
    counts = np.concatenate([rng.poisson(4, 120), rng.poisson(8, 60)]).astype(float)
    found = rate_change(counts)
    assert found is not None
    assert found.llr > 8
    assert abs(found.cell - 120) <= 5
    assert (found.before, found.after) == (pytest.approx(4, rel=0.2), pytest.approx(8, rel=0.2))


def test_flat_poisson_arrivals_have_no_change_worth_the_name():
    strong = [rate_change(np.random.default_rng(s).poisson(5, 300).astype(float)).llr >= 8 for s in range(60)]
    assert sum(strong) <= 1


def test_rate_change_needs_enough_on_both_sides():
    assert rate_change(np.full(25, 1.0)) is None
    known = np.concatenate([np.full(100, math.nan), np.full(20, 1.0), np.full(20, 9.0)])
    found = rate_change(known)
    assert found is not None
    assert found.cell == 120, "cells that are not known are left out, the answer is still a cell of the series"


def test_slope_is_per_second_and_skips_holes():
    values = np.array([0.0, 2.0, math.nan, 6.0, 8.0])
    assert slope(values) == pytest.approx(2.0)
    assert slope(values, cell_s=0.5) == pytest.approx(4.0)
    assert math.isnan(slope(np.array([1.0, math.nan, 2.0])))


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ([0, 10, 0, 0], 0.5, 0.75),
        ([5, 5, 0, 0], 0.25, None),
        ([0, 5, 0, 5], 0.95, None),
        ([0, 0, 0, 0], 0.5, None),
        ([0, 4, 4, 0], 0.75, 1.5),
    ],
    ids=["inside", "below the first bound", "above the last bound", "nothing observed", "third bucket"],
)
def test_bucket_quantile_says_nothing_about_what_buckets_do_not_resolve(counts, q, expected):
    got = bucket_quantile((0.5, 1.0, 2.0), np.array(counts, float), q)
    assert got == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
def test_quantile_is_numpys(values, q):
    assert quantile(np.array(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12, abs=1e-9)


def test_quantile_of_nothing_or_of_what_is_not_known():
    assert math.isnan(quantile(np.zeros(0), 0.5))
    assert math.isnan(quantile(np.array([1.0, math.nan]), 0.5))
    assert quantile(np.array([1.0, math.inf]), 0.0) == 1.0
