"""What the scheduler's settings mean, one small case each."""

import pytest

from engine_shim.engine.engine import Engine, RequestRejected
from engine_shim.request import Stage
from engine_shim.step import STEP_FIELDS, StopReason
from tests.shim.playing import Transcript, make_engine, request, run_all


def step(engine: Engine) -> dict[str, float]:
    """Run one step; its record by name."""
    engine.step()
    told = engine.telemetry
    assert isinstance(told, Transcript)
    return dict(zip(STEP_FIELDS, told.records[-1], strict=True))


def small(**settings: object) -> Engine:
    """Ten blocks of 16 tokens, nothing kept free."""
    return make_engine(**{"kv_pool_tokens": 160, "watermark_ratio": 0.0, "max_num_seqs": 8, **settings})


def test_a_blocked_head_holds_up_all_others_under_fifo() -> None:
    """And the record says who could have come in: that is head-of-line blocking."""
    engine = small(reserve="prompt")
    for name, prompt in (("first", 100), ("head", 90), ("short", 10)):
        engine.add(request(name, prompt, 4))
    record = step(engine)
    assert record["running"] == 1
    assert record["waiting"] == 2
    assert record["stop_reason"] == StopReason.NO_BLOCKS
    assert record["head_need_blocks"] == 6
    assert record["waiting_fit"] == 1


def test_bypass_lets_requests_that_fit_pass_a_blocked_head() -> None:
    engine = small(reserve="prompt", admission="bypass")
    for name, prompt in (("first", 100), ("head", 90), ("short", 10)):
        engine.add(request(name, prompt, 4))
    step(engine)
    assert [r.id for r in engine.scheduler.running] == ["first", "short"]
    assert [r.id for r in engine.scheduler.waiting] == ["head"]


def test_reserving_max_tokens_fills_the_pool_with_promises() -> None:
    """A queue stands although most of the pool is unwritten."""
    engine = small(reserve="max_tokens")
    for i in range(3):
        engine.add(request(f"r{i}", 10, 5, max_tokens=100))
    record = step(engine)
    assert record["running"] == 1
    assert record["kv_used_blocks"] == 1
    assert record["kv_reserved_blocks"] == 6
    assert record["stop_reason"] == StopReason.RESERVATION


def test_the_watermark_keeps_blocks_free_but_never_an_empty_engine_idle() -> None:
    engine = small(reserve="prompt", watermark_ratio=0.3)
    engine.add(request("most", 140, 4))
    assert step(engine)["running"] == 1
    engine = small(reserve="prompt", watermark_ratio=0.3)
    engine.add(request("first", 60, 8))
    engine.add(request("second", 60, 8))
    record = step(engine)
    assert record["stop_reason"] == StopReason.WATERMARK
    assert record["running"] == 1


def test_the_request_admitted_last_is_preempted_and_goes_to_the_front() -> None:
    """Its KV is lost and computed again; a step that preempts admits nobody; everybody ends all the same."""
    engine = small(reserve="none", prefix_cache=False)
    engine.add(request("old", 60, 40))
    engine.add(request("young", 60, 40))
    engine.add(request("waiting", 100, 4))
    record = step(engine)
    while not record["preempted_total"]:
        record = step(engine)
    assert record["stop_reason"] == StopReason.PREEMPTED
    assert [r.id for r in engine.scheduler.waiting] == ["young", "waiting"]
    young = engine.scheduler.waiting.head
    assert young.stage is Stage.REQUEUE
    assert young.computed_tokens == 0
    lost = young.computed_peak_tokens
    run_all(engine)
    assert young.recomputed_tokens == lost == engine.counters.recomputed_tokens
    assert [stage for stage, _, _ in young.stages].count(Stage.REQUEUE) == young.preemptions == 1
    assert young.output_tokens == 40


def test_a_preempted_request_finds_what_is_left_of_its_own_blocks() -> None:
    """With the prefix cache, recomputation is softened."""

    def recomputed(prefix_cache: bool) -> int:
        engine = small(reserve="none", prefix_cache=prefix_cache, max_num_seqs=2)
        engine.add(request("old", 70, 12))
        engine.add(request("young", 70, 40))
        run_all(engine)
        assert engine.counters.preempted >= 1
        return engine.counters.recomputed_tokens

    assert recomputed(prefix_cache=True) < recomputed(prefix_cache=False)


def test_prompts_are_cut_into_chunks_that_share_steps_with_decodes() -> None:
    engine = make_engine(max_step_tokens=100, max_num_seqs=4)
    engine.add(request("decoding", 10, 50))
    step(engine)
    engine.add(request("long", 250, 5))
    records = [step(engine) for _ in range(3)]
    assert [r["prefill_tokens"] for r in records] == [99, 99, 52]
    assert [r["decode_tokens"] for r in records] == [1, 1, 1]


def test_one_request_can_be_kept_from_taking_the_whole_budget() -> None:
    engine = make_engine(max_step_tokens=100, max_chunk_tokens=40, max_num_seqs=4)
    engine.add(request("a", 80, 5))
    engine.add(request("b", 80, 5))
    record = step(engine)
    assert record["prefill_tokens"] == 80
    assert record["longest_prefill_tokens"] == 40


def test_without_chunks_a_prompt_is_computed_whole_and_decodes_wait() -> None:
    engine = make_engine(max_step_tokens=100, chunked_prefill=False, max_num_seqs=4)
    engine.add(request("decoding", 10, 50))
    step(engine)
    engine.add(request("long", 250, 5))
    first, second = step(engine), step(engine)
    assert (first["prefill_tokens"], first["decode_tokens"]) == (250, 0)
    assert (second["prefill_tokens"], second["decode_tokens"]) == (0, 2)


def test_a_request_that_can_never_fit_is_rejected_at_the_door() -> None:
    engine = small()
    with pytest.raises(RequestRejected, match="more than the KV pool's 160"):
        engine.add(request("big", 150, 20))
    with pytest.raises(RequestRejected, match="more than the model's"):
        make_engine(max_model_len=100).add(request("long", 90, 20))
    with pytest.raises(RequestRejected, match="at least one prompt token"):
        small().add(request("empty", 0, 20))
    engine.step()
    told = engine.telemetry
    assert isinstance(told, Transcript)
    assert [(r.id, r.finish_reason) for r in told.done] == [("big", "rejected")]
    assert engine.counters.rejected == engine.counters.arrived == 1


def test_an_oversized_request_that_is_accepted_blocks_an_idle_engine() -> None:
    """Nothing runs, blocks are free, and nobody gets in: only the record tells why."""
    engine = small(reserve="prompt", accept_oversized=True)
    engine.add(request("big", 200, 20))
    engine.add(request("short", 10, 5))
    for _ in range(5):
        assert engine.step() is False
    told = engine.telemetry
    assert isinstance(told, Transcript)
    record = dict(zip(STEP_FIELDS, told.records[-1], strict=True))
    assert (record["running"], record["waiting"], record["waiting_fit"]) == (0, 2, 1)
    assert record["head_need_blocks"] > record["kv_total_blocks"]
    engine.abort("big")
    run_all(engine)
    assert engine.counters.finished == 1


def test_a_full_queue_turns_requests_away() -> None:
    engine = make_engine(max_waiting=2)
    engine.add(request("a", 10, 5))
    engine.add(request("b", 10, 5))
    with pytest.raises(RequestRejected, match="queue is full"):
        engine.add(request("c", 10, 5))


def test_a_shared_prefix_is_computed_once() -> None:
    """Later requests start behind it, and blocks are shared while they run."""
    engine = make_engine(reserve="prompt")
    engine.add(request("first", 200, 20, prefix_key=9, prefix_tokens=160))
    step(engine)
    engine.add(request("second", 200, 20, prefix_key=9, prefix_tokens=160))
    record = step(engine)
    second = engine.scheduler.running[-1]
    assert second.cached_tokens == 160
    assert record["prefill_tokens"] == 40
    assert record["kv_used_blocks"] == 13 + 3  # the second needs three of its own
    assert record["cached_tokens_total"] == 160
    assert record["prompt_tokens_total"] == 400


def test_internal_fragmentation_is_what_blocks_hold_no_token_in() -> None:
    engine = make_engine()
    engine.add(request("a", 17, 5))
    assert step(engine)["kv_slots_unused"] == 15
    assert step(engine)["kv_slots_unused"] == 14
