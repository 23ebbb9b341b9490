"""Overload: more arrives than can be served in any order, and the arrival rate made no step just before."""

import math

import numpy as np
import pytest

from gpuwatch.model import Missing
from gpuwatch.questions.pressure import pressure
from gpuwatch.rules.overload import Params, check
from gpuwatch.testing import START, window

N = 240
LIMIT = {"max_num_seqs": "32"}


def seconds(**changes: object) -> dict[str, np.ndarray]:
    """Arrivals grow slowly from 6 to 10 a second; 8 are served; from the middle on the queue grows."""
    arrivals = np.linspace(6, 10, N)
    waiting = np.maximum(0, np.cumsum(np.where(arrivals > 8, arrivals - 8, 0.0)))
    told = {
        "req_arrived_total": arrivals, "req_finished_total": np.minimum(arrivals, 8.0), "req_waiting": waiting,
        "req_running": np.minimum(arrivals * 4, 32.0), "kv_usage_ratio": np.full(N, 0.5), "waiting_fit": waiting,
        "admission_stop_reason": np.where(waiting > 0, 2.0, 0.0),
    }  # fmt: skip
    return told | {k: np.broadcast_to(v, N).astype(float) for k, v in changes.items()}


def ask(told: dict[str, np.ndarray], info: dict[str, str] | None = None):
    return check(window(info=LIMIT if info is None else info, **told), Params())


def test_fires_when_the_batch_is_full_and_the_queue_grows():
    found = ask(seconds())
    assert found.confidence >= 0.5
    assert found.mechanism == "batch_full"
    assert START + 120 <= found.onset_at <= START + 160, "when there began to be a queue to speak of"
    shown = {e.signal: (e.observed, e.limit) for e in found.evidence}
    observed, limit = shown["arrival_rate_per_second"]
    assert observed > limit


def test_fires_when_the_pool_is_full_of_usual_requests():
    told = seconds(req_running=20.0, kv_usage_ratio=0.95, waiting_fit=0.0, admission_stop_reason=1.0)
    assert ask(told).mechanism == "KV pool_full"


@pytest.mark.parametrize(
    "changes",
    [
        {"req_running": 20.0},
        {"req_waiting": 0.0},
        {"req_waiting": np.append(np.zeros(N - 10), np.full(10, 40.0))},
        {"req_waiting": 5.0},
        {"req_arrived_total": np.append(np.full(125, 5.0), np.full(N - 125, 10.0))},
        {"req_running": 20.0, "kv_usage_ratio": 0.95, "admission_stop_reason": 1.0, "kv_long_share_ratio": 0.7},
    ],
    ids=[
        "there is room", "nobody waits", "for ten seconds only", "less than two seconds of service",
        "the arrival rate stepped up: traffic_surge", "long requests hold the pool",
    ],
)  # fmt: skip
def test_stays_silent(changes):
    assert ask(seconds(**changes)) is None


def test_a_queue_that_drains_is_no_new_overload():
    """The backlog of an incident that is over: less arrives than is served."""
    told = seconds(req_arrived_total=4.0, req_finished_total=8.0, req_waiting=np.linspace(200, 40, N))
    assert ask(told).confidence < 0.5


def test_a_batch_that_drains_and_refills_is_not_full_for_long():
    one = np.concatenate([np.full(8, 32.0), np.linspace(32, 4, 4), [30.0]])
    running = np.resize(one, N)
    found = ask(seconds(req_running=running))
    assert found is None or found.confidence < 0.5


def test_a_full_batch_shows_without_its_limit():
    """Engines do not tell max_num_seqs on their page: a batch that stands at its greatest size is full."""
    assert ask(seconds(), info={}).mechanism == "batch_full"
    noisy = np.random.default_rng(1).poisson(20, N).astype(float)
    assert ask(seconds(req_running=noisy), info={}) is None


def test_it_is_blind_where_the_queue_is_not_known():
    with pytest.raises(Missing, match="req_waiting"):
        ask({k: v for k, v in seconds().items() if k != "req_waiting"})
    with pytest.raises(Missing):
        ask(seconds(req_waiting=np.append(np.zeros(N - 60), np.full(60, math.nan))))


def test_pressure_dates_the_queue_and_sizes_it():
    found = pressure(window(info=LIMIT, **seconds()))
    assert found.waiting_service_s == pytest.approx(found.waiting / found.completions_per_s)
    assert found.surge is None
    assert found.load_factor >= 1
