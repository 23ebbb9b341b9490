"""Silence means what each engine means by it: the hang rule works from a log alone, and an idle engine is none."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import math

import pytest

from gpuwatch.model import Transition
from gpuwatch.pipeline import Pipeline
from gpuwatch.sources.logs import LogRead
from tests.logs.told import last, read, rows, v1

ACCESS = '(APIServer pid=1) INFO 07-28 01:{:02d}:{:02d} [access.py:1] 10.0.0.1 - "GET /health HTTP/1.1" 200'


def judged(found: LogRead) -> list[Transition]:
    """What the pipeline says of a log, second by second."""
    pipeline, calls = Pipeline(), dict(found.calls)
    transitions: list[Transition] = []
    for second in range(math.floor(found.first_at), math.ceil(found.last_at) + 1):
        transitions += pipeline.step(float(second), calls.get(float(second), ())).transitions
    return transitions


def busy(until: int, every: int = 10) -> list[str]:
    return [v1(second, 100.0, 200.0, 8, 0, 50.0) for second in range(0, until, every)]


def test_v1_that_stops_with_requests_inside_hangs():
    found = read(*busy(120), v1(120, 0.0, 90.0, 8, 0, 50.0), v1(130, 0.0, 0.0, 8, 2, 50.0), ACCESS.format(4, 0))
    opened = [t.incident for t in judged(found) if t.kind == "opened"]
    assert [i.rule for i in opened] == ["engine_hang"]
    assert opened[0].onset_at - found.first_at == pytest.approx(120.0, abs=2.0)
    assert opened[0].detected_at - found.first_at <= 135.0


def test_v1_that_stops_with_nothing_inside_is_idle():
    found = read(*busy(60), v1(60, 0.0, 0.0, 0, 0, 0.0), ACCESS.format(9, 0))
    assert judged(found) == []
    assert last(found)["at"] == found.last_at, "that nothing moves is known until the end"
    assert last(found)["req_running"] == 0.0


def test_v1_that_stops_after_a_moving_line_says_nothing_more():
    """The line after it would have to be printed, whatever happens: its printer is gone."""
    found = read(*busy(60), ACCESS.format(9, 0))
    assert max(row["at"] for row in rows(found)) == pytest.approx(found.first_at + 75, abs=1)
    assert [t.incident.rule for t in judged(found)] == []


def test_v0_that_stops_with_requests_inside_hangs():
    line = (
        "INFO 02-01 01:{:02d}:{:02d} metrics.py:349] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 100.0 "
        "tokens/s, Running: 8 reqs, Swapped: 0 reqs, Pending: {} reqs, GPU KV cache usage: 9.0%, CPU KV cache usage: 0.0%."
    )
    stopped = [line.format(s // 60, s % 60, 3) for s in range(0, 60, 5)]
    found = read(*stopped, "INFO 02-01 01:03:00 api_server.py:1] x")
    assert [t.incident.rule for t in judged(found) if t.kind == "opened"] == ["engine_hang"]
    after = [row for row in rows(found) if row["at"] > found.first_at + 90]
    assert {row["generated_tokens_per_second"] for row in after} == {0.0}


def test_sglang_that_stops_says_nothing():
    line = (
        "[2025-06-12 11:{:02d}:{:02d} TP0] Decode batch. #running-req: 4, #token: 9, token usage: 0.10, gen throughput (token/s): "
        "400.0, #queue-req: 0"
    )
    found = read(*(line.format(s // 60, s % 60) for s in range(0, 96, 8)), "[2025-06-12 11:09:00] INFO x")
    assert judged(found) == []
    assert last(found)["at"] - found.first_at < 120


def test_a_steady_log_is_no_incident():
    assert judged(read(*busy(300))) == []


def test_two_ranks_hang_apart():
    lines = []
    for second in range(0, 200, 10):
        lines.append(v1(second, 100.0, 200.0, 8, 0, 50.0, "Engine 000"))
        if second < 100:
            lines.append(v1(second, 100.0, 200.0, 8, 0, 50.0, "Engine 001"))
        elif second == 100:
            lines.append(v1(second, 0.0, 0.0, 8, 0, 50.0, "Engine 001"))
    hung = [t.incident.subject["rank"] for t in judged(read(*lines)) if t.kind == "opened"]
    assert hung == [1]
