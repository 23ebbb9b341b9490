"""Restarts, and what only looks like one; arrivals of an engine that counts endings only."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.page.arrivals import ArrivalBook
from gpuwatch.sources.page.epochs import Epochs

NO_STAMP = math.nan


def follow(pages):
    """Verdicts over (at, tokens, requests, stamp)."""
    epochs = Epochs()
    return [epochs.update({"tokens": tokens, "requests": n}, stamp, at) for at, tokens, n, stamp in pages]


def test_a_later_start_stamp_is_a_restart_even_where_no_counter_fell():
    assert follow([(0, 5, 1, 100.0), (1, 9, 2, 100.2), (2, 10, 3, 200.0)]) == ["", "", "restart"]


def test_without_stamps_a_joint_fall_to_less_than_half_is_a_restart():
    assert follow([(0, 1000, 50, NO_STAMP), (1, 3, 1, NO_STAMP), (2, 8, 2, NO_STAMP)]) == ["", "restart", ""]


def test_one_counter_that_falls_a_little_is_no_restart():
    assert follow([(0, 1000, 50, NO_STAMP), (1, 990, 51, NO_STAMP)]) == ["", "ambiguous"]


def test_processes_that_answer_in_turn_are_no_restarts_and_are_said_once():
    """Counters fall and rise again with each answer: the second fall would be a restart, and so would every other."""
    pages = [(t, (1000, 4000)[t % 2] + t, (50, 300)[t % 2] + t, NO_STAMP) for t in range(1, 20)]
    verdicts = follow(pages)
    assert verdicts.count("restart") <= 1
    assert verdicts.count("ambiguous") == 1


def test_alternating_start_stamps_are_no_restarts():
    verdicts = follow([(t, 1000 + t, 5, (100.0, 160.0)[t % 2]) for t in range(20)])
    assert verdicts.count("restart") == 1, "the first sight of a later stamp looks like one"
    assert verdicts.count("ambiguous") == 1


def test_counters_are_trusted_again_after_a_quiet_minute():
    epochs = Epochs()
    for t in range(10):
        epochs.update({"tokens": (10, 1000)[t % 2], "n": (1, 50)[t % 2]}, NO_STAMP, t)
    assert epochs.ambiguous(10)
    for t in range(10, 80):
        epochs.update({"tokens": 2000 + t, "n": 60 + t}, NO_STAMP, t)
    assert not epochs.ambiguous(80)
    assert epochs.update({"tokens": 1, "n": 0}, NO_STAMP, 81) == "restart"


def test_a_fall_on_a_page_without_the_known_stamp_asks_for_a_whole_page():
    pages = [(0, 1000, 50, 100.0), (1, 3, 1, NO_STAMP), (1, 3, 1, 900.0), (2, 4, 1, NO_STAMP)]
    assert follow(pages) == ["", "unsure", "restart", ""]


def test_unknown_counters_judge_nothing():
    assert follow([(0, 1000, 50, NO_STAMP), (1, math.nan, math.nan, NO_STAMP), (2, 1001, 50, NO_STAMP)]) == [""] * 3


def test_arrivals_grow_with_the_sum_and_an_abort_is_booked_when_it_lasts():
    book = ArrivalBook(settle_s=2.0)
    accounted = [(0, 10), (1, 14), (2, 11), (3, 12), (4, 12), (5, 15)]
    assert [book.update(n, t) for t, n in accounted] == [10, 14, 14, 14, 14, 17]


def test_a_short_dip_is_disorder_and_adds_nothing():
    book = ArrivalBook(settle_s=2.0)
    assert [book.update(n, t) for t, n in [(0.0, 10), (0.2, 9), (0.4, 10), (0.6, 11)]] == [10, 10, 10, 11]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1000) | st.just(math.nan)), max_size=50))
def test_arrivals_never_fall_within_an_epoch(steps):
    book, at, last = ArrivalBook(), 0.0, -math.inf
    for wait, accounted in steps:
        at += wait
        now = book.update(accounted, at)
        assert math.isnan(now) == math.isnan(accounted)
        if now == now:
            assert now >= last
            assert now >= accounted
            last = now
