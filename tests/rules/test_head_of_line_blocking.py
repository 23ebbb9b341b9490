"""Head-of-line blocking: one request holds up others that could be served, fewer than three times."""

import numpy as np
import pytest

from gpuwatch.config import Slo
from gpuwatch.model import Missing
from gpuwatch.rules.head_of_line_blocking import Params, check
from gpuwatch.testing import window


def seconds(**changes: object) -> dict[str, np.ndarray]:
    """A minute of service, then twelve seconds in which the head needs more than is free, and eight others would fit."""
    blocked = np.append(np.zeros(60), np.ones(12))
    told = {
        "req_running": 20 - blocked.cumsum(), "req_waiting": 9 * blocked, "kv_usage_ratio": 0.6 - 0.02 * blocked.cumsum(),
        "waiting_fit": 8 * blocked, "admission_stop_reason": blocked, "head_wait_seconds": blocked.cumsum(),
        "req_finished_total": np.full(72, 2.0), "req_arrived_total": np.full(72, 2.0), "steps_total": np.full(72, 20.0),
        "generated_tokens_total": np.full(72, 500.0),
    }  # fmt: skip
    return told | {k: np.broadcast_to(v, 72).astype(float) for k, v in changes.items()}


def ask(told: dict[str, np.ndarray], params: Params | None = None, **how: object):
    return check(window(Slo(ttft_p95_s=1.0), **how, **told), params or Params())


def test_fires():
    found = ask(seconds())
    assert found.confidence >= 0.5
    assert found.mechanism == "kv_admission"
    shown = {e.signal: e.observed for e in found.evidence}
    assert shown["requests that would fit are held up (waiting_fit), seconds"] == pytest.approx(12, abs=1)
    assert shown["head_wait_seconds"] == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting_fit": 0.0},
        {"admission_stop_reason": 2.0},
        {"head_wait_seconds": 0.5},
        {"req_waiting": 0.0, "waiting_fit": 0.0},
        {"kv_usage_ratio": 0.97},
        {"waiting_fit": np.append(np.zeros(69), np.full(3, 8.0))},
        {"waiting_fit": np.append(np.append(np.zeros(55), np.full(10, 8.0)), np.zeros(7))},
    ],
    ids=[
        "nobody would fit", "a batch slot is missing", "the head is in time", "nobody waits", "no room worth the name",
        "only for three seconds", "recovered",
    ],
)  # fmt: skip
def test_stays_silent(changes):
    assert ask(seconds(**changes)) is None


def test_with_the_third_cycle_it_is_batch_thrashing():
    one = np.concatenate([np.full(4, 40.0), np.linspace(40, 5, 10), [38.0]])
    running = np.concatenate([np.full(65, 40.0), np.tile(one, 3), one[:14]])
    low = (running < 38).astype(float)
    told = {
        "req_running": running, "req_waiting": np.full(len(running), 9.0), "kv_usage_ratio": running / 80,
        "waiting_fit": 8 * low, "admission_stop_reason": low, "head_wait_seconds": np.full(len(running), 9.0),
        "req_finished_total": np.full(len(running), 4.0), "req_arrived_total": np.full(len(running), 4.0),
        "steps_total": np.full(len(running), 20.0), "generated_tokens_total": np.full(len(running), 500.0),
    }  # fmt: skip
    assert ask(told) is None
    assert ask(told, Params(cycles=9)).confidence < 0.5, "it recurs: wait for the third"


def test_on_a_page_free_cache_stands_for_the_ring():
    page = {
        k: v for k, v in seconds().items() if k not in ("waiting_fit", "admission_stop_reason", "head_wait_seconds")
    }
    found = ask(page, source="page", info={"max_num_seqs": "32"})
    assert 0.5 <= found.confidence < ask(seconds()).confidence
    full = page | {"req_running": np.full(72, 32.0)}
    assert ask(full, source="page", info={"max_num_seqs": "32"}) is None, "a full batch explains the queue"


def test_on_a_page_that_does_not_say_its_limit_the_fullest_batch_stands_for_it():
    page = {
        k: v for k, v in seconds().items() if k not in ("waiting_fit", "admission_stop_reason", "head_wait_seconds")
    }
    assert ask(page, source="page") is not None
    assert ask(page | {"req_running": np.full(72, 20.0)}, source="page") is None, (
        "it may be full: nothing says it is not"
    )


def test_it_is_blind_without_the_cache_and_without_the_ring():
    page = {k: v for k, v in seconds().items() if k in ("req_running", "req_waiting", "req_finished_total")}
    with pytest.raises(Missing, match="kv_usage_ratio"):
        ask(page, source="page")


def test_where_nobody_is_served_the_order_is_not_to_blame():
    """A hang starts with a queue beside free cache, too."""
    page = {
        k: v for k, v in seconds().items() if k not in ("waiting_fit", "admission_stop_reason", "head_wait_seconds")
    }
    moving = np.append(np.full(60, 500.0), np.zeros(12))
    stands = page | {"generated_tokens_total": moving, "steps_total": moving}
    assert ask(stands, source="page", info={"max_num_seqs": "32"}) is None


def test_one_prompt_that_occupies_the_steps():
    """The compute form: two-second steps, each spent on one long prompt, while others wait."""
    n = 72
    slow = np.append(np.zeros(60), np.ones(12))
    told = seconds(waiting_fit=0.0, admission_stop_reason=3.0) | {
        "step_seconds": np.where(slow > 0, 2.0, 0.05),
        "step_longest_prefill_tokens": np.where(slow > 0, 16_000.0, 200.0),
        "step_prefill_tokens": np.where(slow > 0, 16_000.0, 200.0),
    }
    found = ask(told)
    assert found.mechanism == "prefill_compute"
    assert found.onset_at == pytest.approx(window(**told).now - 12, abs=2)
    chunked = told | {"step_seconds": np.full(n, 0.3)}
    assert ask(chunked) is None, "in chunks, the same prompt holds nobody up for long"
