"""Batch thrashing: cycles at flat arrivals while requests wait that would fit. Toy worlds: test_look_alikes.py."""

import numpy as np
import pytest

from gpuwatch.model import Missing
from gpuwatch.rules.batch_thrashing import Params, check
from gpuwatch.testing import window


def seconds(**changes: object) -> dict[str, np.ndarray]:
    """Five minutes of it as the ring tells: full, drained while the head does not fit, refilled, every 18 s."""
    one = np.concatenate([np.full(5, 40.0), np.linspace(40, 5, 11), [20.0, 38.0]])
    running = np.concatenate([np.full(84, 40.0), np.tile(one, 12)])
    drained = (running < 38).astype(float)
    told = {
        "req_running": running, "req_waiting": np.full(300, 8.0), "kv_usage_ratio": 0.3 + running / 80,
        "waiting_fit": 5 * drained, "admission_stop_reason": drained, "req_arrived_total": np.full(300, 4.0),
        "req_finished_total": np.full(300, 4.0), "req_preempted_total": np.zeros(300),
        "prompt_tokens_total": np.full(300, 2e3), "generated_tokens_total": np.full(300, 1e3),
        "recomputed_tokens_total": np.zeros(300),
    }  # fmt: skip
    return told | {k: np.broadcast_to(v, 300).astype(float) for k, v in changes.items()}


FIRES = {
    "the head does not fit": ({}, "head_admission"),
    "preemption drives it": ({"req_preempted_total": 3.0, "admission_stop_reason": 5.0}, "preemption_recompute"),
}
SILENT = {
    "nobody waits (periodic load)": {"req_waiting": 0.0},
    "nobody who waits would fit": {"waiting_fit": 0.0},
    "a batch slot was missing, not room": {"admission_stop_reason": 2.0},
    "no cycles": {"req_running": 40.0},
    "preemption without cycles (a storm)": {"req_running": 40.0, "req_preempted_total": 8.0},
    "arrivals stepped up": {"req_arrived_total": np.append(np.full(200, 4.0), np.full(100, 8.0))},
    "the swing is small": {"req_running": seconds()["req_running"] / 2 + 20},
}


@pytest.mark.parametrize(("changes", "mechanism"), FIRES.values(), ids=FIRES)
def test_fires(changes, mechanism):
    found = check(window(**seconds(**changes)), Params())
    assert found is not None
    assert found.confidence >= 0.5
    assert found.mechanism == mechanism
    shown = {e.signal: e.observed for e in found.evidence}
    assert shown["drain–refill cycles of req_running"] >= 3
    assert shown["cycle period, median (seconds)"] == pytest.approx(18, abs=1)
    assert {r.rule for r in found.ruled_out} >= {"traffic_surge", "gpu_throttling", "engine_hang"}


@pytest.mark.parametrize("changes", SILENT.values(), ids=SILENT)
def test_stays_silent_or_unsure(changes):
    found = check(window(**seconds(**changes)), Params())
    assert found is None or found.confidence < 0.5


def test_two_cycles_are_not_three():
    """A suspicion after the first swing, the verdict with the third."""
    cut = {k: v[:120] for k, v in seconds().items()}
    found = check(window(**cut), Params())
    assert found is not None
    assert found.confidence < 0.5
    assert check(window(**cut), Params(cycles=1)).confidence >= 0.5


def test_without_the_ring_it_is_less_sure():
    told = seconds()
    with_ring = check(window(**told), Params())
    page = {k: v for k, v in told.items() if k not in ("waiting_fit", "admission_stop_reason")}
    without = check(window(info={"max_num_seqs": "64"}, source="page", **page), Params())
    assert 0.5 <= without.confidence < with_ring.confidence
    assert without.mechanism == "head_admission"


def test_it_is_blind_without_a_running_set():
    told = {k: v for k, v in seconds().items() if k != "req_running"}
    with pytest.raises(Missing, match="req_running"):
        check(window(**told), Params())
