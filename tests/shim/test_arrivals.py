"""Arrivals and lengths: their statistics, their reproducibility, and that streams do not disturb each other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine_shim.demand.arrivals import Demand
from engine_shim.demand.lengths import Fixed, grid_tokens, parse_lengths
from engine_shim.demand.streams import Stream
from engine_shim.request import Request

POOL = 100_000


def stream(name: str = "s", **changes: Any) -> Stream:
    facts: dict[str, Any] = {
        "name": name, "arrivals": "poisson", "from_s": 0.0, "until_s": 2000.0, "prompt": Fixed(100), "output": Fixed(10),
    }  # fmt: skip
    return Stream(**(facts | changes))


def demand(*streams: Stream, seed: int = 1, rate: float = 5.0, start: float = 0.0) -> Demand:
    rates = [rate if s.arrivals != "closed" else 0.0 for s in streams]
    return Demand(streams, rates, pool_tokens=POOL, seed=seed, start=start)


def drained(source: Demand) -> Iterator[Request]:
    while source.peek() < float("inf"):
        at = source.peek()
        request = source.take()
        assert request.arrived_at == at
        yield request


def times(source: Demand) -> np.ndarray:
    return np.array([r.arrived_at for r in drained(source)])


@pytest.mark.parametrize(
    ("kind", "cv"),
    [({"arrivals": "poisson"}, 1.0), ({"arrivals": "gamma", "cv": 2.5}, 2.5), ({"arrivals": "uniform"}, 0.0)],
)
def test_gaps_have_the_rate_and_the_spread_asked_for(kind: dict[str, Any], cv: float):
    at = times(demand(stream(**kind)))
    gaps = np.diff(at)
    assert (gaps >= 0).all()
    assert len(at) == pytest.approx(10_000, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.12)


def test_diurnal_load_swings_and_keeps_its_mean():
    """In each period's first half more comes than in its second: 1 + 2·swing/π against 1 − 2·swing/π."""
    at = times(demand(stream(arrivals="diurnal", period_s=200.0, swing_ratio=0.5)))
    assert len(at) == pytest.approx(10_000, rel=0.04)
    rising = ((at % 200) < 100).mean()
    assert rising == pytest.approx((1 + 2 * 0.5 / np.pi) / 2, abs=0.02)


def test_a_stream_keeps_to_its_interval():
    at = times(demand(stream(from_s=50.0, until_s=60.0), start=1000.0))
    assert at.min() >= 1050
    assert at.max() < 1060


def test_the_same_seed_sends_the_same_requests():
    def sent(seed: int) -> list[tuple[float, int, int]]:
        lengths = parse_lengths({"lognormal": 300, "sigma": 1.0})
        made = demand(stream(until_s=100.0, prompt=lengths, output=lengths), seed=seed)
        return [(r.arrived_at, r.prompt_tokens, r.stop_after) for r in drained(made)]

    assert sent(7) == sent(7)
    assert sent(7) != sent(8)


def test_streams_do_not_move_each_other():
    """A stream sends the same with and without a second one, and lengths do not move times."""
    first = stream("first", until_s=50.0, prompt=parse_lengths({"uniform": [1, 1000]}))
    second = stream("second", until_s=50.0)
    alone = [(r.arrived_at, r.prompt_tokens) for r in drained(demand(first))]
    together = [(r.arrived_at, r.prompt_tokens) for r in drained(demand(second, first)) if r.id.startswith("first")]
    assert alone == together
    longer = times(demand(stream("first", until_s=50.0, prompt=Fixed(9))))
    assert longer.tolist() == [at for at, _ in alone]


def test_thinning_keeps_a_part_of_the_very_same_requests():
    lengths = parse_lengths({"uniform": [1, 10_000]})
    whole = {
        (r.arrived_at, r.prompt_tokens, r.stop_after) for r in drained(demand(stream(prompt=lengths, output=lengths)))
    }
    part = {
        (r.arrived_at, r.prompt_tokens, r.stop_after)
        for r in drained(demand(stream(prompt=lengths, output=lengths, kept=0.4)))
    }
    assert part < whole
    assert len(part) / len(whole) == pytest.approx(0.4, abs=0.03)


def test_requests_come_in_order_over_all_streams():
    at = times(demand(stream("a", until_s=100.0), stream("b", arrivals="uniform", until_s=100.0)))
    assert (np.diff(at) >= 0).all()


def test_a_closed_loop_waits_for_its_answers():
    """Three clients: three requests, then nothing until one has finished."""
    source = demand(stream(arrivals="closed", concurrency=3))
    requests = [source.take() for _ in range(3)]
    assert source.peek() == float("inf")
    requests[1].finish_reason, requests[1].finished_at = "stop", 42.0
    source.finished(requests[1])
    assert source.peek() == 42.0
    assert source.take().id == "s-4"


def test_a_refused_client_backs_off():
    """An engine that is down must not be asked without end at one instant."""
    source = demand(stream(arrivals="closed", concurrency=1))
    request = source.take()
    request.finish_reason, request.finished_at = "error", request.arrived_at
    source.finished(request)
    assert source.peek() == request.arrived_at + 1.0


def test_max_tokens_and_shared_prefixes_reach_the_request():
    request = demand(stream(max_tokens=4, shared_prefix_tokens=64, tenant="a")).take()
    assert (request.max_tokens, request.stop_after, request.prefix_tokens, request.tenant) == (4, 4, 64, "a")
    assert request.prefix_key != 0


@pytest.mark.parametrize(
    ("table", "mean", "low", "high"),
    [
        (250, 250, 250, 250),
        ({"uniform": [50, 300]}, 175, 50, 300),
        ({"lognormal": 400, "sigma": 0.5}, 400 * np.exp(0.125), 1, 1_000_000),
        ({"lognormal": 400, "sigma": 2.0, "min": 16, "max": 500}, None, 16, 500),
        ({"pool_uniform": [0.1, 0.3]}, 20_000, 10_000, 30_000),
        ({"mix": [{"share": 0.9, "fixed": 10}, {"share": 0.1, "uniform": [1000, 2000]}]}, 159, 10, 2000),
    ],
)
def test_lengths_have_the_mean_and_the_range_asked_for(table: Any, mean: float | None, low: int, high: int):
    lengths = parse_lengths(table)
    drawn = lengths.tokens(np.random.default_rng(1).random(20_000), POOL)
    assert low <= drawn.min()
    assert drawn.max() <= high
    for sample in (drawn, grid_tokens(lengths, POOL)):
        if mean is not None:
            assert sample.mean() == pytest.approx(mean, rel=0.04)
