"""Spans alone: the queue and the batch in hindsight. Requests come first in, first out to a batch of four."""

import heapq

import numpy as np
import pytest

from gpuwatch.clues import judge
from gpuwatch.clues.limits import what_it_cannot_tell
from gpuwatch.clues.sighting import gather
from gpuwatch.model import STAGES, Batch, Spans, Subject, Verdict

NOTHING = Verdict(1, (), None, (), ())
ENGINE = Subject(engine="e")
SLOTS, PREFILL_S = 4, 0.05


def by(at, what):
    return what(at) if callable(what) else what


def served(arrivals, decode_s, slots=SLOTS, prompt=100.0, tokens=50.0):
    """(arrival, queue, decode seconds, prompt, output) of each request; what is callable depends on the arrival."""
    free, out = [0.0] * SLOTS, []
    for at in arrivals:
        while len(free) > by(at, slots):
            heapq.heappop(free)
        while len(free) < by(at, slots):
            heapq.heappush(free, at)
        admitted = max(at, heapq.heappop(free))
        heapq.heappush(free, admitted + PREFILL_S + by(at, decode_s))
        out.append((at, admitted - at, by(at, decode_s), prompt, by(at, tokens)))
    return out


def spans_of(requests):
    calls = []
    stages = [STAGES.index(s) for s in ("request", "queue", "prefill", "decode")]
    for n, (at, queue, decode, prompt, output) in enumerate(requests):
        admitted = 1000 + at + queue
        first = admitted + PREFILL_S
        start = np.array([1000 + at, 1000 + at, admitted, first])
        end = np.array([first + decode, admitted, first, first + decode])
        four = np.full(4, n, np.uint64)
        spans = Spans(
            ENGINE, "spans", four, np.array(stages, np.uint8), start, end, np.full(4, prompt), np.full(4, output),
            np.full(4, np.nan), np.ones(4, np.uint8),
        )  # fmt: skip
        calls.append((float(end[0]), (Batch("spans", "spans", ENGINE, float(end[0]), spans=(spans,)),)))
    return sorted(calls, key=lambda c: c[0])


def named(requests):
    return [i.rule for i in judge(spans_of(requests), NOTHING).incidents]


def steady(rate, since, until):
    return np.arange(since, until, 1 / rate).tolist()


def test_requests_that_were_let_in_at_once_are_no_incident():
    assert named(served(steady(2, 0, 120), 1.0)) == []


def test_a_full_batch_after_more_arrivals_is_a_surge_and_says_by_how_much():
    requests = served(steady(1, 0, 40) + steady(6, 40, 90), 1.0)
    (found,) = judge(spans_of(requests), NOTHING).incidents
    assert (found.rule, found.mechanism) == ("traffic_surge", "batch_full")
    rows = {e.signal: e for e in found.evidence}
    assert rows["arrivals of finished requests (1/s)"].observed == pytest.approx(6, abs=0.3)
    assert rows["running at a time, in hindsight"].observed == SLOTS
    assert {e.source for e in found.evidence} == {"spans"}


def test_a_full_batch_after_longer_outputs_is_a_shift_of_lengths():
    requests = served(
        steady(2, 0, 120), lambda at: 1.0 if at < 50 else 4.0, tokens=lambda at: 50.0 if at < 50 else 200.0
    )
    assert named(requests) == ["length_shift"]


def test_a_full_batch_from_the_beginning_is_overload():
    assert named(served(steady(6, 0, 60), 1.0)) == ["overload"]


def test_a_queue_before_a_batch_with_room_is_not_decided():
    """The same arrivals find four slots, then for most of the time one: somebody holds the place, spans do not say who."""
    requests = served(steady(2, 0, 100), 1.0, slots=lambda at: 4 if at < 40 or 45 < at < 48 else 1)
    (found,) = judge(spans_of(requests), NOTHING).incidents
    assert found.rule == "unknown"
    assert {a.rule for a in found.alternatives} == {"head_of_line_blocking", "long_context_kv_pressure"}


def test_a_few_late_requests_among_many_are_no_incident():
    requests = served(steady(2, 0, 120), 1.0)
    requests[100:107] = [(at, 3.0, *rest) for at, _, *rest in requests[100:107]]
    assert named(requests) == []


def test_what_spans_cannot_tell_is_said():
    said = what_it_cannot_tell(gather(spans_of(served(steady(2, 0, 60), 1.0))))
    assert said[0].startswith("No page or log of an engine: what is said rests on requests that finished")
