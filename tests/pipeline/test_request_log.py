"""Requests counted once each, however their spans were cut; everything bounded."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.memory.requests import MAX_ARRIVALS, MAX_ROWS, UNFINISHED_S, Arrivals, FinishedRequests
from gpuwatch.model import STAGES, Spans, Subject

T = 1_764_000_000.0
Row = tuple[int, str, float, float]


def spans(rows: list[Row], prompt_tokens: float = 100.0, output_tokens: float = 20.0) -> Spans:
    n = len(rows)
    return Spans(
        Subject(engine="shim"), "spans",
        np.array([r[0] for r in rows], np.uint64), np.array([STAGES.index(r[1]) for r in rows], np.uint8),
        np.array([r[2] for r in rows], float), np.array([r[3] for r in rows], float),
        np.full(n, prompt_tokens), np.full(n, output_tokens), np.full(n, math.nan), np.ones(n, np.uint8),
    )  # fmt: skip


def request(id: int, at: float, queue: float = 1.0, prefill: float = 0.5, decode: float = 3.0) -> list[Row]:
    """A request's four spans."""
    b, c, d = at + queue, at + queue + prefill, at + queue + prefill + decode
    return [(id, "queue", at, b), (id, "prefill", b, c), (id, "decode", c, d), (id, "request", at, d)]


def rows_of(log: FinishedRequests) -> dict[str, list[float]]:
    return {k: np.round(v, 6).tolist() for k, v in log.window(0.0, 2 * T).items()}


def test_a_request_is_one_row_of_stages():
    log = FinishedRequests()
    log.add(spans([(7, "receive", T - 0.2, T), *request(7, T)]), T + 5)
    row = {name: column[0] for name, column in rows_of(log).items()}
    assert row["ttft_s"] == pytest.approx(1.7), "from the first span to the first token"
    assert row["e2e_s"] == pytest.approx(4.7)
    assert (row["queue_s"], row["prefill_s"], row["decode_s"]) == (1.0, 0.5, 3.0)
    assert row["front_s"] == pytest.approx(0.2)
    assert math.isnan(row["requeue_s"])
    assert (row["prompt_tokens"], row["output_tokens"]) == (100, 20)


def test_a_preempted_request_sums_its_stages():
    log = FinishedRequests()
    rows: list[Row] = [
        (1, "queue", T, T + 1), (1, "prefill", T + 1, T + 2), (1, "decode", T + 2, T + 3),
        (1, "requeue", T + 3, T + 7), (1, "prefill", T + 7, T + 8), (1, "decode", T + 8, T + 10), (1, "request", T, T + 10),
    ]  # fmt: skip
    log.add(spans(rows), T + 11)
    row = {name: column[0] for name, column in rows_of(log).items()}
    assert (row["requeue_s"], row["prefill_s"], row["decode_s"]) == (4, 2, 3)
    assert row["ttft_s"] == 2, "the first token came before the preemption"


def in_parts(rows: list[Row], cuts: list[int]) -> FinishedRequests:
    log = FinishedRequests()
    for a, b in pairwise([0, *sorted(cuts), len(rows)]):
        if a < b:
            log.add(spans(rows[a:b]), T + 9)
    log.forget(T + 9 + UNFINISHED_S + 1)
    return log


@st.composite
def some_requests(draw: st.DrawFn) -> tuple[list[list[Row]], list[int]]:
    ids = range(1, 1 + draw(st.integers(1, 8)))
    rows = [request(i, T + i / 8, queue=i % 3, prefill=0.25) for i in ids]
    return rows, draw(st.lists(st.integers(0, 4 * len(rows)), max_size=5))


@settings(max_examples=40, deadline=None)
@given(some_requests(), st.randoms(use_true_random=False))
def test_however_spans_are_split_a_request_counts_once(requests_and_cuts, random):
    requests, cuts = requests_and_cuts
    rows = [row for r in requests for row in r]
    random.shuffle(rows)
    log = in_parts(rows, cuts)
    assert log.rows == len(requests)
    assert len(log.take_fresh()) == len(requests)


@settings(max_examples=40, deadline=None)
@given(some_requests(), st.randoms(use_true_random=False))
def test_spans_split_over_batches_make_the_same_rows(requests_and_cuts, random):
    """Where a request's whole ends last, as exporters send it, its row is complete."""
    requests, cuts = requests_and_cuts
    stages, wholes = [row for r in requests for row in r[:-1]], [r[-1] for r in requests]
    random.shuffle(stages)
    random.shuffle(wholes)
    expected, got = (
        rows_of(in_parts([row for r in requests for row in r], [])),
        rows_of(in_parts(stages + wholes, cuts)),
    )
    old, new = np.argsort(expected["start"]), np.argsort(got["start"])
    for name in expected:
        np.testing.assert_allclose(np.array(got[name])[new], np.array(expected[name])[old], err_msg=name)


def test_a_request_without_its_whole_counts_after_ten_seconds():
    log = FinishedRequests()
    log.add(spans(request(1, T)[:-1]), T + 5)
    log.forget(T + 5)
    assert log.rows == 0
    log.forget(T + 5 + UNFINISHED_S + 0.1)
    assert rows_of(log)["ttft_s"] == [1.5]


def test_spans_that_come_after_their_row_are_late_and_not_another_request():
    log = FinishedRequests()
    log.add(spans(request(1, T)), T + 5)
    log.add(spans(request(1, T)[:1]), T + 6)
    log.forget(T + 20)
    assert (log.rows, log.late, len(log.pending)) == (1, 1, 0)
    log.forget(T + 90)
    assert log.counted == {}, "what is remembered for that is bounded in time"


def test_each_time_to_first_token_is_handed_out_once():
    """The SLO counters add what is fresh: neither lost nor doubled."""
    log = FinishedRequests()
    log.add(spans(request(1, T) + request(2, T)), T + 5)
    assert [ttft for ttft, _ in log.take_fresh()] == [1.5, 1.5]
    assert log.take_fresh() == []


def test_the_window_is_of_ends():
    log = FinishedRequests()
    for i in range(200):
        log.add(spans(request(i, T + i)), T + i + 5)
    ends = log.window(T + 100, T + 110)["end"]
    assert len(ends) == 10
    assert ((ends >= T + 100) & (ends < T + 110)).all()


def test_the_slowest_are_named():
    log = FinishedRequests()
    for i in range(20):
        log.add(spans(request(i, T + i, queue=10.0 if i == 13 else 1.0)), T + 60)
    ids, columns = log.slowest(T, T + 100, 1)
    assert ids.tolist() == [13]
    assert columns["queue_s"].tolist() == [10.0]


def test_what_is_old_is_forgotten_and_what_is_too_much_is_counted():
    log = FinishedRequests()
    for k in range(0, MAX_ROWS + 2000, 1000):
        log.add(spans([row for i in range(k, k + 1000) for row in request(i, T, decode=1.0)]), T + 5)
        log.forget(T + 5)
    assert log.rows <= MAX_ROWS
    assert log.cut >= 1000
    log.forget(T + 1000)
    assert log.rows == 0


def test_spans_that_never_end_are_bounded():
    log = FinishedRequests()
    log.add(spans([(i, "queue", T, T + 1) for i in range(5000)]), T + 1)
    assert len(log.pending) <= 4096
    assert log.cut == 5000 - len(log.pending)


def test_an_arrival_counts_once_though_it_is_seen_in_flight_and_in_its_span():
    seen = Arrivals()
    seen.add(np.array([T + 1.01, T + 2.0]), np.array([100.0, 5000.0]))
    seen.add(np.array([T + 1.01, T + 2.0, T + 3.0]), np.array([100.0, 5000.0, math.nan]))
    times, tokens = seen.window(T, T + 10)
    assert tokens.tolist() == [100, 5000]
    assert times.tolist() == pytest.approx([T + 1.0, T + 2.0])


def test_arrivals_are_bounded_and_keep_the_newest():
    seen = Arrivals()
    n = 3 * MAX_ARRIVALS
    for k in range(0, n, 5000):
        seen.add(T + np.arange(k, k + 5000) / 100, np.arange(k, k + 5000) % 1000 + 1.0)
    assert seen.n <= MAX_ARRIVALS
    assert len(seen.seen) <= MAX_ARRIVALS
    times, _ = seen.window(T, T + n)
    assert times.max() >= T + n / 100 - 1
