"""Long-context KV pressure: a full pool, held by few long requests, with a queue in which nobody would fit."""

import math

import numpy as np
import pytest

from gpuwatch.model import Missing
from gpuwatch.rules.long_context_kv_pressure import Params, check
from gpuwatch.testing import START, InFlight, World, window

N = 90


def seconds(**changes: object) -> dict[str, np.ndarray]:
    full = np.append(np.zeros(50), np.ones(40))
    told = {
        "req_running": 20 - 12 * full, "req_waiting": 6 * full, "kv_usage_ratio": 0.5 + 0.46 * full,
        "waiting_fit": 0 * full, "admission_stop_reason": full, "kv_long_share_ratio": 0.1 + 0.7 * full,
        "req_finished_total": np.full(N, 2.0), "req_arrived_total": np.full(N, 2.0),
    }  # fmt: skip
    return told | {k: np.broadcast_to(v, N).astype(float) for k, v in changes.items()}


def test_fires():
    w = window(**seconds())
    found = check(w, Params())
    assert found.confidence >= 0.5
    assert found.mechanism == "long_holders"
    assert found.onset_at == pytest.approx(START + 50, abs=5)
    shown = {e.signal: e.observed for e in found.evidence}
    assert shown["KV held by long requests"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_long_share_ratio": 0.3},
        {"kv_usage_ratio": 0.7},
        {"req_waiting": np.append(np.zeros(N - 3), np.full(3, 6.0))},
        {"waiting_fit": 4.0, "kv_usage_ratio": 0.86},
        {"req_waiting": 0.0},
    ],
    ids=["the usual requests fill it", "there is room", "a queue of three seconds", "others would fit", "recovered"],
)
def test_stays_silent(changes):
    assert check(window(**seconds(**changes)), Params()) is None


def test_without_a_live_table_tokens_per_request_tell():
    page = {
        k: v for k, v in seconds().items() if k not in ("kv_long_share_ratio", "waiting_fit", "admission_stop_reason")
    }
    usual = {"kv_per_request_ratio": 0.5 / 20}
    found = check(window(usual=usual, info={"max_num_seqs": "32"}, **page), Params())
    assert 0.5 <= found.confidence < check(window(**seconds()), Params()).confidence
    assert check(window(usual={"kv_per_request_ratio": 0.1}, info={"max_num_seqs": "32"}, **page), Params()) is None


def test_with_neither_it_is_blind():
    page = {k: v for k, v in seconds().items() if k != "kv_long_share_ratio"}
    with pytest.raises(Missing, match="kv_long_share_ratio"):
        check(window(**page), Params())


def test_the_largest_holders_are_named_with_their_share():
    world = World()
    world.in_flight(
        [InFlight(i, START - 10 + i, prompt_tokens=100, blocks=5) for i in range(20)]
        + [InFlight(90 + i, START, prompt_tokens=8000, blocks=100 + 300 * i) for i in range(3)]
    )
    world.set(**{k: float(v[-1]) for k, v in seconds().items() if k != "kv_long_share_ratio"})
    world.run(40)
    found = check(world.window(), Params())
    assert [c.id for c in found.culprits[:3]] == [f"{92:016x}", f"{91:016x}", f"{90:016x}"]
    assert found.culprits[0].share == pytest.approx(700 / 1300)
    assert sum(c.share for c in found.culprits) <= 1


def test_nan_seconds_do_not_make_a_pool_full():
    usage = seconds()["kv_usage_ratio"]
    usage[::3] = math.nan
    assert check(window(**seconds(kv_usage_ratio=usage)), Params()) is not None
    usage[30:] = math.nan
    with pytest.raises(Missing):
        check(window(**seconds(kv_usage_ratio=usage)), Params())
