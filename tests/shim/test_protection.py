"""Protection in virtual time: what each mechanism refuses, that it never loses count, and that fusing changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.engine.engine import Engine, RequestRejected
from engine_shim.engine.step_extras import step_fields
from engine_shim.protection.protection import Protection, Unprotected, rejection_reasons
from engine_shim.protection.rate_limit import RateLimit
from engine_shim.protection.refusal import LONGEST_RETRY_S
from engine_shim.protection.service_rate import KNOWN_FROM, ServiceRate
from engine_shim.request import Request, Stage
from engine_shim.settings.engine import EngineSettings
from tests.shim.playing import Transcript, make_engine, played, request, run_all

ALL = {
    "rate_limit_per_s": 30.0, "rate_limit_burst": 6, "max_concurrency": 30, "queue_target_s": 0.5,
    "queued_tokens_target_s": 0.6, "deadline_rejection": True,
}  # fmt: skip


def demand(seed: int, rate_per_s: float, seconds: float, prompt: int = 600, output: int = 120) -> Iterator[Request]:
    """Poisson arrivals of two tenants; most have a deadline."""
    draw = np.random.default_rng(seed)
    now, count = 1000.0, 0
    while (now := now + draw.exponential(1 / rate_per_s)) < 1000.0 + seconds:
        count += 1
        deadline_at = now + float(draw.uniform(0.1, 3.0)) if draw.random() < 0.8 else math.inf
        lengths = int(draw.integers(1, prompt)), int(draw.integers(1, output))
        yield request(f"r{count}", *lengths, now, tenant="ab"[count % 2], deadline_at=deadline_at)


# -- early ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    per_s=st.floats(0.1, 50),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=80),
)
def test_no_interval_sees_more_than_a_burst_and_the_rate(per_s: float, burst: int, gaps: list[float]) -> None:
    """From any request that passes, at most burst + rate × time pass; and who was refused passes after its pause."""
    limit, now, passed = RateLimit(per_s, burst), 1000.0, []
    for number, gap in enumerate(gaps):
        now += gap
        refusal = limit.refusal(request(f"r{number}", 1, 1, now, tenant="a"))
        if refusal is None:
            passed.append(now)
        else:
            assert 1.0 <= (refusal.retry_after_s or 0) <= LONGEST_RETRY_S
    for first, start in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + per_s * (passed[last] - start) + 1e-6
    assert limit.refusal(request("later", 1, 1, now + 1.0 / per_s + 1e-6, tenant="a")) is None


def test_senders_have_buckets_of_their_own_and_their_number_is_bounded() -> None:
    """A key goes before the tenant; a sender that was forgotten starts with a full bucket."""
    limit = RateLimit(0.001, 1, max_buckets=2)
    assert limit.refusal(request("1", 1, 1, client="key", tenant="a")) is None
    assert limit.refusal(request("2", 1, 1, client="key", tenant="b")) is not None
    assert limit.refusal(request("3", 1, 1, tenant="a")) is None
    assert limit.refusal(request("4", 1, 1, tenant="b")) is None
    assert len(limit) == 2
    assert limit.refusal(request("5", 1, 1, client="key")) is None


# -- the measured rate ----------------------------------------------------------------------------------------------------


def done(at: float, prompt: int = 100) -> Request:
    """A request whose prefill took half a second."""
    served = request("r", prompt, 1, at - 2)
    served.stages = [(Stage.QUEUE, at - 2, at - 1.5), (Stage.PREFILL, at - 1.5, at - 1.0)]
    served.first_token_at = at - 1.0
    return served


def test_the_rate_is_measured_while_somebody_waits_and_kept_while_nobody_does() -> None:
    """Four a second in a busy minute; the idle hour after it does not lower that, nor do its few requests."""
    rate = ServiceRate()
    rate.queue(True, 1000.0)
    for number in range(1, 241):
        assert rate.known == (number > KNOWN_FROM)
        rate.finished(done(1000.0 + number / 4), 1000.0 + number / 4)
    assert rate.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert rate.prompt_tokens_per_s == pytest.approx(400.0, rel=0.05)
    assert rate.prefill_seconds(100) == pytest.approx(0.5)
    assert rate.prefill_seconds(300) == pytest.approx(1.5)
    rate.queue(False, 1060.0)
    rate.finished(done(2000.0), 2000.0)
    rate.queue(True, 4660.0)
    assert rate.requests_per_s == pytest.approx(4.0, rel=0.05)


def test_the_rate_follows_an_engine_that_slows_down() -> None:
    """Half of the new rate is there after a half-life, nearly all after four."""
    rate = ServiceRate()
    rate.queue(True, 0.0)
    for number in range(1, 401):
        rate.finished(done(number / 8), number / 8)
    for number in range(1, 21):
        rate.finished(done(50 + number / 2), 50 + number / 2)
    assert rate.requests_per_s == pytest.approx(5.0, rel=0.1)
    for number in range(21, 81):
        rate.finished(done(50 + number / 2), 50 + number / 2)
    assert rate.requests_per_s == pytest.approx(2.3, rel=0.1)


# -- late -----------------------------------------------------------------------------------------------------------------


def overloaded(seconds: float = 25.0, rate_per_s: float = 90.0, **table: Any) -> Transcript:
    """Three times what this engine can serve."""
    engine = make_engine(max_num_seqs=24, kv_pool_tokens=40_000, **table)
    return played(engine, demand(7, rate_per_s, seconds), seconds)


def refused(engine: Engine, new: Request) -> str:
    """Hand a request in: the reason why it is turned away, empty if it is not."""
    with suppress(RequestRejected):
        engine.add(new)
        return ""
    return new.rejected_for


def waits(told: Transcript, after: float = 1010.0) -> np.ndarray:
    """Seconds to the first token of requests that came late in the run."""
    return np.array([r.first_token_at - r.arrived_at for r in told.done if r.first_token_at and r.arrived_at > after])


def test_the_queue_is_as_long_as_the_target_allows() -> None:
    """Without a limit waits grow without end; with a target of half a second they stay there, and work goes on."""
    free, held = overloaded(), overloaded(queue_target_s=0.5)
    assert np.median(waits(free)) > 5
    assert 0.2 < np.median(waits(held)) < 1.0
    assert {r.rejected_for for r in held.done if r.finish_reason == "rejected"} == {"queue_full"}
    served = [sum(r.finish_reason == "length" for r in told.done) for told in (free, held)]
    assert served[1] > 0.9 * served[0]


def test_tokens_are_limited_where_a_few_long_prompts_are_the_queue() -> None:
    """The prompt tokens that wait stay below the target's worth; a prompt longer than that passes when it is alone."""
    told = overloaded(queued_tokens_target_s=0.5)
    assert {r.rejected_for for r in told.done if r.finish_reason == "rejected"} == {"queued_tokens"}
    assert np.median(waits(told)) < 1.0
    engine = make_engine(queued_tokens_target_s=0.001)
    engine.add(request("long", 8000, 2))
    run_all(engine)
    assert [r.finish_reason for r in engine.telemetry.done] == ["length"]


def test_a_burst_into_an_idle_engine_is_let_in() -> None:
    """Slots that are free need no queue: twenty at once, with a rate that was measured when all were long."""
    engine = make_engine(max_num_seqs=24, queue_target_s=0.1)
    protection = engine.protection
    assert isinstance(protection, Protection)
    protection.backlog.rate.queue(True, 1000.0)
    for number in range(1, 20):
        protection.backlog.rate.finished(done(1000.0 + 5 * number), 1000.0 + 5 * number)
    protection.backlog.rate.queue(False, 1100.0)
    engine.add(request("first", 10, 50))
    engine.step()
    reasons = [refused(engine, request(f"r{number}", 10, 5)) for number in range(30)]
    assert reasons == [""] * 24 + ["queue_full"] * 6  # 23 into free slots, one that may wait


def test_deadlines_refuse_at_the_door() -> None:
    """Those that are let in are in time, and most of the others are turned away before they wait."""
    told = overloaded(deadline_rejection=True)
    rejected = [r for r in told.done if r.finish_reason == "rejected"]
    assert {r.rejected_for for r in rejected} == {"deadline"}
    assert sum(not r.stages for r in rejected) > 0.7 * len(rejected)
    late = [r for r in told.done if r.first_token_at > r.deadline_at]
    in_time = [r for r in told.done if 0 < r.first_token_at <= r.deadline_at < math.inf]
    assert len(late) < 0.15 * len(in_time)


def test_who_has_missed_its_deadline_leaves_the_queue_with_the_next_step() -> None:
    """Nothing is known of the rate yet, so it was let in; nobody waits for it any more, and it is never computed."""
    engine = make_engine(max_num_seqs=1, deadline_rejection=True)
    load = [request("long", 100, 900), request("late", 100, 5, deadline_at=1002.5), request("patient", 100, 5)]
    told = played(engine, iter(load), 12.0)
    left = {r.id: (r.finish_reason, r.rejected_for) for r in told.done}
    assert left == {"long": ("length", ""), "late": ("rejected", "deadline"), "patient": ("length", "")}
    late = load[1]
    step_s = float(np.max(told.columns["ended_at"] - told.columns["begun_at"]))
    assert late.deadline_at <= late.finished_at <= late.deadline_at + step_s
    assert told.columns["rejected_total"][-1] == 1


def test_who_has_no_deadline_is_never_refused_for_it() -> None:
    """Patience is the default."""
    told = overloaded(deadline_rejection=True)
    assert not any(r.deadline_at == math.inf for r in told.done if r.finish_reason == "rejected")


def test_early_and_late_are_told_apart() -> None:
    """A request that breaks its rate and meets a full engine is rate limited: who sends comes first."""
    engine = make_engine(rate_limit_per_s=0.1, rate_limit_burst=1, max_concurrency=1)
    engine.add(request("one", 10, 5, tenant="a"))
    for name, tenant, reason in (("two", "a", "rate_limited"), ("three", "b", "concurrency")):
        with pytest.raises(RequestRejected) as caught:
            engine.add(request(name, 10, 5, tenant=tenant))
        assert caught.value.refusal.reason == reason
    run_all(engine)
    assert {r.id: r.rejected_for for r in engine.telemetry.done} == {
        "one": "", "two": "rate_limited", "three": "concurrency",
    }  # fmt: skip
    assert engine.counters.rejected == 2


# -- book-keeping ---------------------------------------------------------------------------------------------------------


def check_counts(engine: Engine) -> None:
    """What protection believes is what the engine holds."""
    backlog, scheduler = engine.protection.backlog, engine.scheduler
    inbox = [r for r in engine._inbox if not r.finish_reason]
    waiting = [*scheduler.waiting, *inbox]
    assert backlog.waiting == len(waiting)
    assert backlog.waiting_tokens == sum(r.prompt_tokens for r in waiting)
    assert backlog.in_engine == len(waiting) + len(scheduler.running)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), pool_blocks=st.integers(90, 300), crashes=st.booleans())
def test_counts_are_never_lost(seed: int, pool_blocks: int, crashes: bool) -> None:
    """Through preemptions, aborts, expiries, duplicates and a crash, nobody is counted twice or forgotten."""
    engine = make_engine(kv_pool_tokens=16 * pool_blocks, max_num_seqs=8, reserve="none", **ALL)
    added, draw = [], np.random.default_rng(seed)
    for new in demand(seed, 60.0, 3.0):
        while engine.clock.now() < new.arrived_at:
            before = engine.clock.now()
            engine.step()
            check_counts(engine)
            if engine.clock.now() == before:
                engine.clock.advance_to(new.arrived_at)
        added.append(new)
        assert refused(engine, new) == new.rejected_for
        check_counts(engine)
        if draw.random() < 0.1:
            engine.abort(added[draw.integers(len(added))].id)
    if crashes:
        engine.crash()
        engine.start()
    else:
        run_all(engine)
    check_counts(engine)
    assert len(engine.telemetry.done) == len(added)
    known = set(rejection_reasons(engine.settings))
    assert all(r.rejected_for in known for r in added if r.finish_reason == "rejected")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), rate_per_s=st.floats(5, 120), keys=st.sets(st.sampled_from(sorted(ALL)), min_size=1))
def test_fused_and_plain_refuse_the_same(seed: int, rate_per_s: float, keys: set[str]) -> None:
    """Every step, every request and every reason, to the last bit."""
    table = {key: ALL[key] for key in keys | ({"rate_limit_per_s"} if "rate_limit_burst" in keys else set())}
    runs = [
        played(
            make_engine(kv_pool_tokens=8_992, max_num_seqs=12, **table), demand(seed, rate_per_s, 4.0), 5.0, fuse=fuse
        )
        for fuse in (True, False)
    ]
    one, other = runs
    for name in step_fields(EngineSettings.from_table({"model": "7b", **table})):
        np.testing.assert_array_equal(one.columns[name], other.columns[name], err_msg=name)
    assert [(r.id, r.rejected_for, r.finished_at, r.stages) for r in one.done] == [
        (r.id, r.rejected_for, r.finished_at, r.stages) for r in other.done
    ]


def test_nothing_is_on_by_default() -> None:
    """And then there is nothing to count with."""
    assert type(make_engine().protection) is Unprotected
    assert rejection_reasons(EngineSettings()) == ("too_long", "queue_full", "other")


BAD = {
    "a burst of no rate": ({"rate_limit_burst": 5}, "rate_limit_burst has no meaning without rate_limit_per_s"),
    "a negative target": ({"queue_target_s": -1.0}, "queue_target_s must be between 0"),
    "no number": ({"queued_tokens_target_s": math.nan}, "queued_tokens_target_s must be between 0"),
    "a cache without bounds": ({"response_cache_entries": 10**9}, "response_cache_entries must be between 0"),
    "a wrong type": ({"max_concurrency": 2.5}, "max_concurrency must be an integer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_name_the_key(case: str) -> None:
    table, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)
