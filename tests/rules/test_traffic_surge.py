"""Traffic surge: the arrival rate stepped up, and the queue follows from that alone."""

import numpy as np
import pytest

from gpuwatch.model import Missing
from gpuwatch.rules import overload
from gpuwatch.rules.traffic_surge import Params, check
from gpuwatch.testing import START, window

N = 200
AT = 150
LIMIT = {"max_num_seqs": "32"}


def seconds(before: float = 5.0, after: float = 12.0, at: int = AT, **changes: object) -> dict[str, np.ndarray]:
    """Poisson arrivals that step up at `at`; eight a second are served, the rest waits."""
    rng = np.random.default_rng(2)
    arrivals = np.append(rng.poisson(before, at), rng.poisson(after, N - at)).astype(float)
    waiting = np.append(np.zeros(at), np.cumsum(np.full(N - at, max(0.0, after - 8))))
    told = {
        "req_arrived_total": arrivals, "req_finished_total": np.minimum(arrivals, 8.0), "req_waiting": waiting,
        "req_running": np.append(np.full(at, 16.0), np.full(N - at, 32.0)), "kv_usage_ratio": np.full(N, 0.5),
        "waiting_fit": waiting, "admission_stop_reason": np.where(waiting > 0, 2.0, 0.0),
    }  # fmt: skip
    return told | {k: np.broadcast_to(v, N).astype(float) for k, v in changes.items()}


def ask(told: dict[str, np.ndarray]):
    return check(window(info=LIMIT, **told), Params())


def test_fires_and_is_dated_by_the_step():
    found = ask(seconds())
    assert found.confidence >= 0.5
    assert found.onset_at == pytest.approx(START + AT, abs=8)
    assert overload.check(window(info=LIMIT, **seconds()), overload.Params()) is None, "one of the two, not both"


@pytest.mark.parametrize(
    "told",
    [
        seconds(before=8.0, after=10.0),
        seconds(req_running=20.0),
        seconds(req_waiting=0.0),
        seconds(at=195),
        seconds(at=60, req_waiting=np.append(np.zeros(150), np.arange(50.0))),
    ],
    ids=["a quarter more", "there is room", "it is absorbed", "five seconds ago", "long before the queue"],
)
def test_stays_silent(told):
    assert ask(told) is None


def test_a_ramp_is_overload():
    told = seconds()
    told["req_arrived_total"] = np.linspace(6, 9, N)
    assert ask(told) is None


def test_a_change_of_lengths_beside_it_is_not_ruled_out():
    found = ask(seconds())
    assert next(r for r in found.ruled_out if r.rule == "length_shift").because


def test_it_is_blind_without_arrivals_to_count():
    with pytest.raises(Missing):
        ask({k: v for k, v in seconds().items() if k not in ("req_arrived_total", "req_finished_total")})
