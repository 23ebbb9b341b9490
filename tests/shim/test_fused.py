"""Fused stretches of decode steps show exactly what the plain loop shows, and take a fraction of its time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.engine.engine import Engine
from engine_shim.faults import Outage, Slowdown
from engine_shim.request import Request
from engine_shim.step import STEP_FIELDS
from tests.shim.playing import Transcript, make_engine, played, request, steady


def both(seconds: float, table: dict[str, Any], load: dict[str, Any], **more: Any) -> tuple[Transcript, Transcript]:
    """The same load played fused and step by step."""
    fused, plain = (played(make_engine(**table), steady(**load), seconds, fuse=fuse, **more) for fuse in (True, False))
    return fused, plain


def assert_equal(fused: Transcript, plain: Transcript) -> None:
    """Every field of every step, device readings, polls and requests, to the last bit."""
    for name in STEP_FIELDS:
        np.testing.assert_array_equal(fused.columns[name], plain.columns[name], err_msg=name)
    for name, values in plain.readings.items():
        np.testing.assert_array_equal(fused.readings[name], values, err_msg=name)
    assert fused.polls == plain.polls
    assert fused.stages == plain.stages
    assert fused.events == plain.events
    assert [(r.id, r.stages, r.first_token_at, r.finished_at, r.finish_reason) for r in fused.done] == [
        (r.id, r.stages, r.first_token_at, r.finished_at, r.finish_reason) for r in plain.done
    ]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("reserve", ["none", "prompt", "max_tokens"])
@pytest.mark.parametrize("admission", ["fifo", "bypass"])
def test_equal_under_pressure(admission: str, reserve: str, chunked: bool) -> None:
    """A pool that is too small, so that heads block, promises run out and requests are preempted."""
    table = {
        "admission": admission, "reserve": reserve, "chunked_prefill": chunked, "kv_pool_tokens": 8_992,
        "max_num_seqs": 12, "watermark_ratio": 0.03,
    }  # fmt: skip
    load = {"seed": 5, "rate_per_s": 9.0, "seconds": 20.0, "prompt": (20, 3000), "output": (20, 300)}
    fused, plain = both(20.0, table, load)
    assert plain.columns["waiting"].max() > 3
    assert_equal(fused, plain)


def test_equal_with_preemptions() -> None:
    """Long outputs on a small pool: recomputation again and again."""
    table = {"reserve": "none", "kv_pool_tokens": 6_000, "max_num_seqs": 32}
    load = {"seed": 2, "rate_per_s": 8.0, "seconds": 15.0, "prompt": (20, 300), "output": (200, 700)}
    fused, plain = both(15.0, table, load)
    assert plain.columns["preempted_total"][-1] > 20
    assert_equal(fused, plain)


@pytest.mark.parametrize(
    "fault",
    [
        Slowdown(1003.2, 1005.7, 0.0, "hung_step"),
        Slowdown(1003.2, 1005.7, 0.25),
        Outage(1004.0, 1.5, "restart"),
    ],
    ids=lambda fault: fault.kind,
)
def test_equal_with_faults(fault: Slowdown | Outage) -> None:
    """Faults begin and end at the same step in both."""
    load = {"seed": 3, "rate_per_s": 5.0, "seconds": 8.0, "prompt": (20, 600), "output": (50, 200)}
    fused, plain = both(8.0, {}, load, faults=[fault])
    assert_equal(fused, plain)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    pool_blocks=st.integers(40, 400),
    max_num_seqs=st.integers(1, 24),
    rate_per_s=st.floats(0.5, 30),
    reserve=st.sampled_from(["none", "prompt", "max_tokens"]),
    admission=st.sampled_from(["fifo", "bypass"]),
    longest=st.sampled_from([100, 400]),
    poll_s=st.sampled_from([0.2, 1.0, 7.0]),
)
def test_equal_whatever_the_load(
    seed: int, pool_blocks: int, max_num_seqs: int, rate_per_s: float, reserve: str, admission: str, longest: int,
    poll_s: float,
) -> None:  # fmt: skip
    table = {
        "kv_pool_tokens": 16 * pool_blocks, "max_num_seqs": max_num_seqs, "reserve": reserve, "admission": admission,
    }  # fmt: skip
    load = {"seed": seed, "rate_per_s": rate_per_s, "seconds": 4.0, "prompt": (1, 500), "output": (1, longest)}
    assert_equal(*both(4.0, table, load, poll_s=poll_s))


def test_shared_prefixes_stay_equal() -> None:
    """Idle prefix blocks are forgotten in the same steps, and a blocked head's need follows them."""

    def run(fuse: bool) -> Transcript:
        engine = make_engine(kv_pool_tokens=4_000, reserve="none", max_num_seqs=10, admission="bypass")
        draw = np.random.default_rng(4)
        at = 1000.0 + np.add.accumulate(draw.exponential(0.1, 120))
        keys, outputs = draw.integers(1, 6, 120), draw.integers(20, 250, 120)
        load = [
            request(
                f"r{i}", 400 + 16 * i % 90, int(outputs[i]), float(at[i]), prefix_key=int(keys[i]), prefix_tokens=320
            )
            for i in range(120)
        ]
        return played(engine, iter(load), 25.0, fuse=fuse)

    fused, plain = run(fuse=True), run(fuse=False)
    assert plain.columns["cached_tokens_total"][-1] > 2000
    assert_equal(fused, plain)


def test_a_decode_only_engine_is_fused() -> None:
    """A quiet batch is played in few scheduler calls: the point of it all."""
    engine = make_engine(kv_pool_tokens=100_000)
    calls = []
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda now: calls.append(now) or schedule(now)  # type: ignore[method-assign]
    told = played(engine, iter([request(f"r{i}", 100, 900 + i) for i in range(40)]), 8.0)
    assert len(told.columns["step"]) > 900
    assert len(calls) < 80


def calls_of(engine: Engine) -> list[float]:
    """The clock times at which the engine's scheduler is asked from now on."""
    calls: list[float] = []
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda now: calls.append(now) or schedule(now)  # type: ignore[method-assign]
    return calls


def test_requests_that_finish_do_not_end_a_stretch() -> None:
    """Forty requests of forty lengths, and nobody waits: hardly a step is scheduled by itself."""
    engine = make_engine(kv_pool_tokens=100_000)
    calls = calls_of(engine)
    told = played(engine, iter([request(f"r{i}", 100, 50 + 20 * i) for i in range(40)]), 12.0, poll_s=4.0)
    assert len(told.done) == 40
    assert len(told.columns["step"]) > 800
    assert len(calls) < 30


def test_requests_that_only_queue_do_not_end_a_stretch() -> None:
    """A large head that cannot get in, and others that come behind it."""
    engine = make_engine(kv_pool_tokens=20_000, reserve="prompt")
    calls = calls_of(engine)
    first = [request(f"r{i}", 1000, 400) for i in range(12)]
    behind = [request(f"w{i}", 15_000 if i == 0 else 100, 50, 1000.5 + 0.05 * i) for i in range(40)]
    told = played(engine, iter([*first, *behind]), 3.0, poll_s=5.0)
    assert told.columns["waiting"].max() == 40
    waited = told.columns["waiting"] > 0
    assert len([at for at in calls if at > told.columns["begun_at"][waited][0]]) < waited.sum() / 4


def test_a_closed_loop_hears_of_each_finish_in_time() -> None:
    """Where a finish brings the next request, a stretch ends with it."""

    def run(fuse: bool) -> Transcript:
        engine = make_engine(kv_pool_tokens=30_000)
        told = engine.telemetry
        loop = ClosedLoop(8)
        told.finished = lambda r: (told.done.append(r), loop.finished(r))  # type: ignore[method-assign]
        return played(engine, loop, 6.0, fuse=fuse)  # type: ignore[arg-type]

    fused, plain = run(fuse=True), run(fuse=False)
    assert len(plain.done) > 40
    assert_equal(fused, plain)


class ClosedLoop:
    """Clients that send their next request with the end of the last one."""

    reacts = True

    def __init__(self, clients: int) -> None:
        self._due = [1000.0] * clients
        self._count = 0

    def peek(self) -> float:
        return min(self._due, default=float("inf"))

    def take(self) -> Request:
        at = self.peek()
        self._due.remove(at)
        self._count += 1
        return request(f"r{self._count}", 50 + self._count % 7, 30 + 13 * self._count % 90, at)

    def finished(self, done: Request) -> None:
        self._due.append(done.finished_at)
