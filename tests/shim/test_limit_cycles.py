"""Oscillations that come from the scheduler alone: the arrival rate is flat, the capacity suffices, and still the batch
drains and refills. Two mechanisms, and the setting that ends each."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine_shim.faults import FOREVER
from engine_shim.request import Request
from tests.shim.playing import Transcript, make_engine, played, request

LONG_SHARE = 0.04


def chat_with_long_prompts(seed: int, seconds: float) -> Iterator[Request]:
    """5 requests a second; after a minute, 4 % of the prompts have 24–60 thousand tokens."""
    draw = np.random.default_rng(seed)
    now, count = 1000.0, 0
    while (now := now + draw.exponential(0.2)) < 1000.0 + seconds:
        count += 1
        is_long = draw.random() < LONG_SHARE and now > 1060.0
        prompt = draw.integers(24_000, 60_000) if is_long else min(draw.lognormal(np.log(500), 0.6), 4000)
        yield request(f"r{count}", int(prompt) + 1, int(draw.integers(150, 350)), now)


def on_grid(told: Transcript, name: str, since: float, every_s: float = 0.5) -> np.ndarray:
    """A field of the step records, its last value held, at regular times."""
    begun = told.columns["begun_at"]
    times = np.arange(since, begun[-1], every_s)
    return told.columns[name][np.searchsorted(begun, times, side="right") - 1]


def drains(running: np.ndarray, waiting: np.ndarray) -> int:
    """How often the batch was full and then fell below half of that while requests waited."""
    full, count = np.percentile(running, 90), 0
    was_full = False
    for now, queue in zip(running, waiting, strict=True):
        if now >= 0.7 * full:
            was_full = True
        elif was_full and now <= 0.45 * full and queue > 0:
            was_full, count = False, count + 1
    return count


def ttft_p95_s(told: Transcript) -> float:
    return float(np.percentile([r.first_token_at - r.arrived_at for r in told.done if r.arrived_at > 1060.0], 95))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_prompts_make_a_strict_queue_drain_and_refill_the_batch(seed: int) -> None:
    """The founding case: waiting goes from single digits to dozens, again and again; bypassing the head cures it."""

    def run(admission: str) -> Transcript:
        engine = make_engine(admission=admission, reserve="prompt", kv_pool_tokens=130_000, max_num_seqs=64)
        return played(engine, chat_with_long_prompts(seed, 300.0), 300.0)

    fifo, bypass = run("fifo"), run("bypass")
    before = on_grid(fifo, "waiting", 1005.0)[:100]
    assert before.max() < 8
    running, waiting = on_grid(fifo, "running", 1060.0), on_grid(fifo, "waiting", 1060.0)
    assert drains(running, waiting) >= 6
    assert running.min() <= 4
    assert running.max() >= 50
    assert waiting.max() >= 60
    assert fifo.columns["preempted_total"][-1] < 0.02 * fifo.columns["arrived_total"][-1]
    assert on_grid(bypass, "waiting", 1060.0).max() < 0.5 * waiting.max()
    assert ttft_p95_s(bypass) < 0.4 * ttft_p95_s(fifo)


class Closed:
    """A fixed number of clients, each with one request in flight: 300-token prompts, answers of 2200–2600 tokens."""

    def __init__(self, clients: int, seed: int) -> None:
        self._due = [1000.0 + 0.01 * i for i in range(clients)]
        self._draw = np.random.default_rng(seed)
        self._count = 0

    def peek(self) -> float:
        return self._due[0] if self._due else FOREVER

    def take(self) -> Request:
        self._count += 1
        prompt, output = int(self._draw.integers(200, 400)), int(self._draw.integers(2200, 2600))
        return request(f"c{self._count}", prompt, output, self._due.pop(0), max_tokens=4096)

    def next_from(self, finished: Request) -> None:
        self._due.append(finished.finished_at + 0.001)
        self._due.sort()


class Attended(Transcript):
    """A transcript whose clients hear when their answer is there."""

    def __init__(self, clients: Closed) -> None:
        super().__init__()
        self._clients = clients

    def finished(self, request: Request) -> None:
        super().finished(request)
        self._clients.next_from(request)


@pytest.mark.parametrize("seed", [1, 2])
def test_recomputation_makes_a_clean_period(seed: int) -> None:
    """Admission sees prompts only, so the batch outgrows the pool and loses its youngest, about every 21 seconds."""

    def run(pool_tokens: int) -> Transcript:
        clients = Closed(40, seed)
        engine = make_engine(
            Attended(clients), reserve="none", kv_pool_tokens=pool_tokens, max_num_seqs=64, prefix_cache=False
        )
        return played(engine, clients, 240.0)  # type: ignore[arg-type]

    small, large = run(60_000), run(130_000)
    running = on_grid(small, "running", 1060.0)
    swing = running - running.mean()
    correlation = np.correlate(swing, swing, "full")[len(swing) - 1 :] / (swing @ swing)
    first_negative = int(np.argmax(correlation < 0))
    peak = first_negative + int(np.argmax(correlation[first_negative : len(swing) // 2]))
    assert correlation[peak] > 0.5
    assert 15.0 < peak * 0.5 < 30.0
    assert running.max() - running.min() >= 12
    assert small.columns["recomputed_tokens_total"][-1] > 0.1 * small.columns["generated_tokens_total"][-1]
    assert large.columns["preempted_total"][-1] == 0
    assert on_grid(large, "waiting", 1060.0).max() == 0
