"""Scheduling policies: what each does in a small case, and that its effect has the size that it exists for."""

from typing import Any

import numpy as np
import pytest

from engine_shim.engine.engine import Engine
from engine_shim.policies.prefill_budget import StepSeconds
from engine_shim.request import Stage
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StepPlan, StopReason
from engine_shim.studies import batching, policies
from engine_shim.studies.played import play_load
from tests.shim.playing import Transcript, make_engine, played, request, run_all
from tests.shim.test_fused import assert_equal
from tests.shim.test_scheduler import small, step

BAD = {
    "order": ({"scheduling": "lifo"}, "scheduling must be one of fifo, fifo_wait_limit, priority, shortest_prompt"),
    "batching": ({"batching": "dynamic"}, "batching must be one of continuous, static"),
    "no limit": ({"scheduling": "fifo_wait_limit", "admission": "bypass"}, "needs wait_limit_s"),
    "nobody passes": ({"scheduling": "fifo_wait_limit", "wait_limit_s": 5}, 'set admission = "bypass"'),
    "idle limit": ({"wait_limit_s": 5}, "wait_limit_s has no meaning"),
    "no ageing": ({"scheduling": "priority", "ageing_s": 0}, "ageing_s must be above 0"),
    "share of nothing": ({"prefill_step_share": 0}, "prefill_step_share must be above 0"),
    "a step of minutes": ({"prefill_step_seconds": 60}, "prefill_step_seconds must be between 0 and 10"),
    "two budgets": ({"prefill_step_share": 0.5, "prefill_step_seconds": 0.02}, "remove one of them"),
    "whole prompts": ({"prefill_step_share": 0.5, "chunked_prefill": False}, "needs chunked_prefill"),
    "fewer than none": ({"max_long_prefills": -1}, "max_long_prefills must not be negative"),
    "all are long": ({"long_prefill_tokens": 0}, "long_prefill_tokens must be at least 1"),
}


@pytest.mark.parametrize(("table", "message"), BAD.values(), ids=BAD.keys())
def test_settings_without_sense_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)


def names(engine: Engine) -> tuple[list[str], list[str]]:
    """Who runs and who waits, in order."""
    return [r.id for r in engine.scheduler.running], [r.id for r in engine.scheduler.waiting]


# -- priority ------------------------------------------------------------------------------------------------------------


def test_interactive_requests_wait_before_batch_ones_that_have_not_aged() -> None:
    """The bound is exact: who comes `ageing_s` after a batch request does not pass it."""
    engine = make_engine(scheduling="priority", ageing_s=10.0, max_num_seqs=1)
    engine.add(request("running", 10, 50))
    engine.step()
    for name, at, priority in (("job", 1000.0, 1), ("chat", 1009.9, 0), ("late", 1010.1, 0), ("job2", 1000.0, 1)):
        engine.add(request(name, 10, 5, at, priority=priority))
    engine.step()
    assert names(engine) == (["running"], ["chat", "job", "job2", "late"])


def test_an_interactive_request_takes_the_place_of_the_youngest_batch_request() -> None:
    """Which goes back to its place in the queue, and finishes later."""
    engine = make_engine(scheduling="priority", max_num_seqs=2)
    for name in ("job1", "job2", "job3"):
        engine.add(request(name, 100, 60, 1000.0, priority=1))
        engine.step()
    assert names(engine) == (["job1", "job2"], ["job3"])
    engine.add(request("chat", 100, 5, engine.clock.now()))
    engine.step()
    assert names(engine) == (["job1", "chat"], ["job2", "job3"])
    assert engine.counters.preempted == 1
    run_all(engine)
    assert engine.counters.finished == 4


def test_an_aged_batch_request_keeps_its_place() -> None:
    engine = make_engine(scheduling="priority", ageing_s=10.0, max_num_seqs=1)
    engine.add(request("job", 100, 60, 980.0, priority=1))
    engine.step()
    engine.add(request("chat", 100, 5, 1000.0))
    engine.step()
    assert names(engine) == (["job"], ["chat"])


def test_nobody_is_displaced_in_vain() -> None:
    """A head that would not fit even so leaves the batch requests alone; one that fits takes as few as it needs."""
    engine = small(scheduling="priority", reserve="prompt")
    engine.add(request("other", 60, 30))
    engine.add(request("job1", 30, 30, priority=1))
    engine.add(request("job2", 30, 30, priority=1))
    engine.step()
    engine.add(request("large", 110, 4))
    engine.step()
    assert names(engine) == (["other", "job1", "job2"], ["large"])
    engine.abort("large")
    engine.add(request("fits", 60, 4))
    engine.step()
    assert names(engine) == (["other", "job1", "fits"], ["job2"])


def test_when_blocks_run_out_the_youngest_of_the_lowest_class_goes() -> None:
    engine = small(scheduling="priority", reserve="none", prefix_cache=False)
    engine.add(request("old job", 30, 60, 999.0, priority=1))
    engine.add(request("young job", 30, 60, 1000.0, priority=1))
    engine.add(request("chat", 60, 60, 1000.0))
    while not engine.counters.preempted:
        engine.step()
    assert names(engine)[1] == ["young job"]


def test_a_batch_prefill_under_way_lets_an_interactive_prompt_go_first() -> None:
    engine = make_engine(scheduling="priority", max_step_tokens=100, max_num_seqs=8)
    engine.add(request("job", 1000, 5, priority=1))
    step(engine)
    engine.add(request("chat", 80, 5))
    step(engine)
    chat = engine.scheduler.running[-1]
    assert (chat.id, chat.stage) == ("chat", Stage.DECODE)


def test_priority_with_ageing_keeps_interactive_waits_low_while_batch_work_goes_on() -> None:
    """P95 of the time to first token below twice that of chat alone, where FIFO has a hundred times as much."""
    cases = ("chat alone", "fifo", "priority, ageing 60 s, prefill_step_share 0.125")
    alone, fifo, priority = (policies.play_classes(policies.CLASSES[case], seconds=60.0) for case in cases)
    p95_s = [
        np.percentile(policies.first_token_s(policies.of_stream(p, "chat", 15.0)), 95) for p in (alone, fifo, priority)
    ]
    assert p95_s[2] < 2 * p95_s[0]
    assert p95_s[1] > 50 * p95_s[0]
    jobs = [len(policies.of_stream(p, "jobs", 15.0)) for p in (fifo, priority)]
    assert jobs[1] > 0.9 * jobs[0]
    assert policies.longest_wait_s(priority, "jobs") < 60.0  # nobody even has to age


def test_ageing_lets_batch_work_through_a_flood_of_interactive_requests() -> None:
    """No job is passed by who comes more than `ageing_s` after it; without ageing hardly a job is done."""
    flood = {"scheduling": "priority", "ageing_s": 5.0}
    aged = policies.play_classes((flood, [policies.FLOOD, policies.FEW_JOBS]), seconds=60.0)
    starved = policies.play_classes((flood | {"ageing_s": 3600.0}, [policies.FLOOD, policies.FEW_JOBS]), seconds=60.0)
    done = [len(policies.of_stream(p, "jobs", 0.0)) for p in (aged, starved)]
    assert done[0] > done[1] + 4
    admitted = {r: r.stages[0][2] for r in aged.left}
    jobs = [r for r in aged.left if r.priority]
    for job in jobs:
        passed_by = [r for r in aged.left if not r.priority and r.arrived_at > job.arrived_at + 5.0]
        assert all(admitted[r] >= admitted[job] for r in passed_by)


# -- waits ---------------------------------------------------------------------------------------------------------------


def test_a_starving_head_is_passed_no_more() -> None:
    """Under bypass it is, for ever; with a limit only until then, and what becomes free collects for it."""
    for limit, order in (({}, "passed"), ({"scheduling": "fifo_wait_limit", "wait_limit_s": 0.1}, "kept")):
        engine = small(reserve="prompt", admission="bypass", **limit)
        engine.add(request("first", 60, 30))
        engine.add(request("head", 130, 4))
        engine.step()
        while engine.clock.now() < 1000.15:
            engine.step()
        engine.add(request("short", 10, 4, engine.clock.now()))
        engine.step()
        assert ("short" in names(engine)[0]) == (order == "passed")
        run_all(engine)


def test_a_wait_limit_bounds_the_starvation_that_passing_causes() -> None:
    """Large requests wait without end when small ones may pass them, and little more than the limit with one."""
    settings = {name: policies.TIGHT | table for name, table in policies.PASSING.items()}
    loads = [policies.SMALL, policies.LARGE]
    passed = play_load(settings["bypass"], loads, seconds=60.0)
    limited = play_load(settings["bypass, fifo_wait_limit 5 s"], loads, seconds=60.0)
    assert policies.longest_wait_s(passed, "large") > 15.0
    assert policies.longest_wait_s(limited, "large") < 5.0 + 5.0


def test_the_shortest_prompt_goes_first_unless_one_has_starved() -> None:
    engine = make_engine(scheduling="shortest_prompt", wait_limit_s=0.1, max_num_seqs=1)
    engine.add(request("running", 10, 400))
    engine.step()
    for name, prompt in (("long", 500), ("short", 50), ("longer", 600), ("as short", 50)):
        engine.add(request(name, prompt, 5))
    engine.step()
    assert names(engine)[1] == ["short", "as short", "long", "longer"]
    while engine.clock.now() < 1000.15:
        engine.step()
    engine.add(request("new", 10, 5, engine.clock.now()))
    engine.step()
    assert names(engine)[1] == ["long", "short", "longer", "as short", "new"]  # all but the last have, in their order


def test_shortest_prompt_first_lowers_the_mean_time_to_first_token() -> None:
    means = []
    for name in ("fifo", "shortest_prompt"):
        run = play_load(policies.BASE | policies.SHORTEST[name], [policies.MIXED], seconds=100.0)
        means.append(policies.first_token_s(policies.of_stream(run, "mixed", 0.0)).mean())
    assert means[1] < 0.7 * means[0]


# -- prefill budget ------------------------------------------------------------------------------------------------------


def test_prefills_take_their_share_while_others_decode_and_all_of_it_otherwise() -> None:
    engine = make_engine(max_step_tokens=200, prefill_step_share=0.25, max_num_seqs=4)
    engine.add(request("first", 300, 5))
    assert [step(engine)["prefill_tokens"] for _ in range(2)] == [200, 100]
    engine.add(request("second", 90, 5))
    assert [step(engine)["prefill_tokens"] for _ in range(2)] == [50, 40]


def test_the_chunk_follows_the_measured_step_time() -> None:
    """On a device of which it knows nothing: 4 ms a step and 20 µs a token make 800 tokens for 20 ms."""
    budget = StepSeconds(0.020, least_tokens=16)
    sizes = []
    for _ in range(30):
        tokens = budget.tokens(8000, decodes=10)
        sizes.append(tokens)
        plan = StepPlan(prefill=[(request("long", 100_000, 1), tokens)], decode=[request("other", 10, 5)])
        budget.measured(plan, 0.004 + 20e-6 * tokens)
    assert sizes[0] <= 128
    assert sizes[-1] == pytest.approx(800, rel=0.02)
    assert all(4e-3 + 20e-6 * size <= 0.021 for size in sizes)
    assert budget.tokens(8000, decodes=0) == 8000
    short = StepPlan(prefill=[(request("short", 30, 1), 30)], decode=[request("other", 10, 5)])
    budget.measured(short, 0.0046)  # a small chunk in a quick step says nothing about large ones
    assert budget.tokens(8000, decodes=10) == sizes[-1]


@pytest.mark.parametrize("name", ["prefill_step_share 0.03", "prefill_step_seconds 0.016"])
def test_a_prefill_budget_removes_the_gaps_of_a_long_prompt(name: str) -> None:
    """40 requests decode while prompts of 32,000 tokens come: no gap above twice the median, without it 30 times."""
    loads = [policies.WRITERS, policies.LONG]
    without = policies.gaps_s(play_load(policies.BASE, loads, seconds=25.0), 5.0)
    budgeted = play_load(policies.BASE | policies.BUDGETS[name], loads, seconds=25.0)
    gaps = policies.gaps_s(budgeted, 5.0)
    assert without.max() >= 5 * np.median(without)
    assert gaps.max() <= 2 * np.median(gaps)
    assert policies.of_stream(budgeted, "long", 0.0)


def test_long_prefills_are_limited_and_short_ones_pass() -> None:
    engine = make_engine(max_step_tokens=100, max_long_prefills=1, long_prefill_tokens=150, max_num_seqs=8)
    for name, prompt in (("long1", 180), ("long2", 200), ("short", 10)):
        engine.add(request(name, prompt, 20))
    step(engine)
    assert names(engine) == (["long1"], ["long2", "short"])  # its chunk took the budget
    record = step(engine)
    assert names(engine) == (["long1", "short"], ["long2"])
    assert record["stop_reason"] == StopReason.LONG_PREFILLS
    step(engine)
    assert names(engine)[0] == ["long1", "short", "long2"]


# -- static batching -----------------------------------------------------------------------------------------------------


def test_a_static_batch_runs_until_its_last_request_has_finished() -> None:
    """It decodes once all its prompts are computed, and nobody joins, although there is room."""
    engine = make_engine(batching="static", max_step_tokens=100, max_num_seqs=2)
    for name, output in (("short", 3), ("long", 9), ("next", 5)):
        engine.add(request(name, 80, output))
    first, second = step(engine), step(engine)
    assert (first["prefill_tokens"], second["prefill_tokens"], second["decode_tokens"]) == (100, 60, 0)
    for _ in range(2):
        record = step(engine)
    assert (record["running"], record["decode_tokens"], record["waiting"]) == (2, 2, 1)
    record = step(engine)
    assert (record["running"], record["stop_reason"]) == (1, StopReason.BATCH_RUNNING)
    run_all(engine)
    told = engine.telemetry
    assert isinstance(told, Transcript)
    ends = {r.id: r.finished_at for r in told.done}
    admitted = {name: at for name, stage, at in told.stages if stage is Stage.PREFILL}
    assert admitted["next"] >= ends["long"] > ends["short"]


def test_padding_is_charged_to_the_batchs_end() -> None:
    """A row that has ended costs as much as one that goes on, and each is as long as the longest."""

    def late_step_s(output: int, prompt: int) -> float:
        engine = make_engine(batching="static", max_num_seqs=8, kv_pool_tokens=100_000)
        engine.add(request("long", 8000, 60))
        for i in range(7):
            engine.add(request(f"r{i}", prompt, output))
        for _ in range(50):
            record = step(engine)
        return record["ended_at"] - record["begun_at"]

    ended_and_short = late_step_s(output=2, prompt=100)
    assert ended_and_short == pytest.approx(late_step_s(output=60, prompt=8000), rel=1e-3)


def test_continuous_batching_has_more_than_twice_the_throughput() -> None:
    outputs = batching.OUTPUTS["uniform 16–1024"]
    static, continuous = (batching.modelled_tokens_per_s(kind, outputs, 70.0) for kind in ("static", "continuous"))
    assert continuous > 2 * static


def test_the_real_runner_serves_static_batches_too() -> None:
    """Slower, with the same tokens in the end."""
    assert batching.torch_tokens_per_s("static", requests=5, slots=3) > 0


# -- fused stretches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["fifo", "bypass"])
@pytest.mark.parametrize(
    "policy",
    [
        {"scheduling": "priority", "ageing_s": 2.0},
        {"scheduling": "shortest_prompt", "wait_limit_s": 1.5},
        {"prefill_step_seconds": 0.02, "max_long_prefills": 1, "long_prefill_tokens": 1000},
        {"batching": "static"},
    ],
    ids=["priority", "shortest_prompt", "prefill_budget", "static"],
)
def test_fused_and_plain_runs_are_equal_under_each_policy(policy: dict[str, Any], admission: str) -> None:
    def run(fuse: bool) -> Transcript:
        engine = make_engine(kv_pool_tokens=8_992, max_num_seqs=10, admission=admission, reserve="prompt", **policy)
        draw = np.random.default_rng(7)
        at = 1000.0 + np.add.accumulate(draw.exponential(0.13, 120))
        prompts, outputs = draw.integers(20, 3000, 120), draw.integers(20, 300, 120)
        load = (
            request(f"r{i}", int(prompts[i]), int(outputs[i]), float(at[i]), priority=int(i % 3 == 0))
            for i in range(120)
        )
        return played(engine, load, 14.0, fuse=fuse)

    fused, plain = run(fuse=True), run(fuse=False)
    assert plain.columns["waiting"].max() > 5
    assert_equal(fused, plain)
