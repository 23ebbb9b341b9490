"""Each captured page against what a person reads off it: signals, histograms, ranks, facts."""

import pytest

from gpuwatch.catalog import CATALOG
from gpuwatch.sources.page.engine_page import EnginePage
from tests.dialects.reading_pages import CAPTURES, captured, facts_of, flat

EXPECTED = {
    "vllm-0.32.0": {
        0: {"req_running": 0, "req_waiting": 0, "req_finished_total": 2741, "req_preempted_total": 458,
            "prompt_tokens_total": 460006, "generated_tokens_total": 282279, "steps_total": 41501,
            "kv_capacity_tokens": 6400, "kv_total_blocks": 200, "req_waiting_capacity": 0}},
    "vllm-0.32.0-synthetic": {
        0: {"req_running": 41, "req_waiting": 3, "req_waiting_capacity": 2, "req_waiting_deferred": 1,
            "req_failed_total": 4, "req_corrupted_total": 0, "engine_asleep": 0, "prefix_hit_tokens_total": 1268320}},
    "vllm-0.32.0-dp2-lora-spec-synthetic": {
        0: {"req_running": 41, "kv_total_blocks": 15039, "spec_drafts_total": 5000, "spec_draft_tokens_total": 15000,
            "spec_accepted_tokens_total": 9900, "lora_running_adapters": 2, "lora_waiting_adapters": 1, "lora_slots": 4},
        1: {"req_running": 19, "req_waiting": 0, "kv_usage_ratio": 0.25, "kv_total_blocks": 15039,
            "spec_accepted_tokens_total": 6000}},
    "vllm-0.33.0-ray-synthetic": {
        0: {"req_running": 12, "kv_usage_ratio": 0.3, "generated_tokens_total": 9000},
        1: {"req_running": 30, "req_waiting": 8, "kv_usage_ratio": 0.97, "req_preempted_total": 6}},
    "vllm-0.10.0-synthetic": {
        0: {"req_running": 9, "kv_usage_ratio": 0.31, "prefix_query_tokens_total": 70000, "req_finished_total": 91,
            "req_aborted_total": 1, "kv_capacity_tokens": 432000}},
    "vllm-0.6.3-synthetic": {0: {"req_running": 12, "req_waiting": 7, "kv_usage_ratio": 0.91, "kv_host_usage_ratio": 0.1}},
    "sglang-0.5.18-synthetic": {
        0: {"req_running": 24, "req_waiting": 7, "req_waiting_capacity": 5, "req_waiting_grammar": 2,
            "req_finished_total": 2010, "req_aborted_total": 7, "req_preempted_total": 13,
            "preempted_tokens_total": 13 * 1210, "kv_usage_ratio": 0.62, "kv_capacity_tokens": 484416,
            "kv_block_tokens": 16, "kv_total_blocks": 30276, "kv_used_blocks": 301120 / 16,
            "kv_cached_ratio": 52224 / 484416, "kv_host_usage_ratio": 0.125, "output_reserve_ratio": 0.34,
            "generated_tokens_total": 911300, "prompt_tokens_total": 2460000, "prefix_query_tokens_total": 2460000,
            "prefix_hit_tokens_total": 640000, "lora_slots": 8, "lora_slots_used": 2}},
    "sglang-0.5.18-dp2-priority-synthetic": {
        0: {"req_running": 20, "req_waiting": 0, "kv_usage_ratio": 0.5, "generated_tokens_total": 900000,
            "req_preempted_total": 4},
        1: {"req_running": 21, "req_waiting": 3, "kv_usage_ratio": 0.6, "generated_tokens_total": 900001}},
    "sglang-0.5.12-decode-synthetic": {
        0: {"req_running": 44, "req_waiting": 18, "req_waiting_prealloc": 17, "req_transferring": 6,
            "kv_transfer_last_seconds": 0.14, "kv_transfer_bytes_per_second": 11.5e9, "kv_transfer_failed_total": 2,
            "req_preempted_total": 0}},
    "sglang-0.4.9-synthetic": {
        0: {"req_running": 31, "req_waiting": 9, "kv_usage_ratio": 0.87, "generated_tokens_total": 310000,
            "prefix_hit_tokens_total": 90000, "req_finished_total": 1200}},
    "trtllm-1.3.0-synthetic": {
        0: {"req_running": 28, "req_waiting": 4, "max_num_seqs": 64, "req_finished_total": 1032, "req_failed_total": 4,
            "req_arrived_total": 1032 + 4 + 28 + 4, "kv_usage_ratio": 0.7421875, "kv_capacity_tokens": 8192 * 32,
            "kv_used_blocks": 6080, "kv_block_tokens": 32, "step_seconds": 0.0312, "step_prefill_tokens": 1024,
            "prefix_hit_ratio": 0.129, "spec_accept_length": 2.3}},
    "trtllm-1.1.0-synthetic": {0: {"req_finished_total": 1032}},
    "triton-26.06-synthetic": {
        0: {"req_running": 31, "req_waiting": 6, "req_paused": 1, "max_num_seqs": 512, "req_finished_total": 1500,
            "req_failed_total": 3, "kv_usage_ratio": 0.75, "kv_capacity_tokens": 399360, "steps_total": 182001,
            "step_prefill_tokens": 512, "step_decode_tokens": 29, "generated_tokens_total": 294000}},
    "triton-23.10-synthetic": {0: {"req_running": 31, "kv_usage_ratio": 0.75, "kv_used_blocks": 4680}},
    "tgi-3.3.7-synthetic": {
        0: {"req_running": 24, "req_waiting": 12, "req_arrived_total": 5230, "req_finished_total": 5120,
            "req_failed_total": 4, "req_rejected_total": 70, "kv_usage_ratio": 61440 / 98304, "steps_total": 403443,
            "prompt_tokens_total": 5120 * 780, "prefix_hit_tokens_total": 812000}},
    "llamacpp-11434": {
        0: {"req_running": 2, "req_waiting": 3, "generated_tokens_total": 900, "steps_total": 1440,
            "prompt_tokens_total": 35, "prefix_query_tokens_total": 51, "prefix_hit_tokens_total": 16}},
    "llamacpp-b4400-synthetic": {
        0: {"req_running": 4, "req_waiting": 11, "kv_usage_ratio": 0.375, "generated_tokens_total": 9120,
            "steps_total": 5210}},
    "lmdeploy-0.10.0-synthetic": {
        0: {"req_running": 14, "req_waiting": 1, "req_finished_total": 410, "req_failed_total": 2,
            "kv_usage_ratio": 0.41, "kv_block_tokens": 64, "max_num_seqs": 128},
        1: {"req_running": 17, "req_waiting": 4, "kv_usage_ratio": 0.66, "generated_tokens_total": 98000}},
    "dynamo-1.0.0-synthetic": {
        0: {"req_running": 8, "req_waiting": 0, "req_arrived_total": 310, "generated_tokens_total": 61000},
        1: {"req_running": 40, "req_waiting": 5, "req_finished_total": 1200, "req_failed_total": 9,
            "req_aborted_total": 2, "req_rejected_total": 4, "kv_capacity_tokens": 384000, "kv_used_blocks": 17200}},
    "shim-0.1.0": {0: {"req_running": 7, "req_waiting": 0, "req_arrived_total": 207}},
}  # fmt: skip
"""Capture → rank → signals, as its lines say."""

HISTOGRAMS = {
    "vllm-0.32.0": {"ttft_seconds": (2741, 2.5102), "itl_seconds": (279538, 0.015154), "queue_seconds": (2741, 2.3617)},
    "sglang-0.5.18-synthetic": {"ttft_seconds": (2010, 0.42), "itl_seconds": (877990, 0.021), "prefill_seconds": (2010, 0.21),
                                "queue_seconds": (2010, 0.11), "prompt_tokens": (2010, 2400000 / 2010)},
    "trtllm-1.3.0-synthetic": {"ttft_seconds": (1032, 0.33), "tpot_seconds": (1032, 0.028), "decode_seconds": (1032, 5.8)},
    "trtllm-1.1.0-synthetic": {"e2e_seconds": (1032, 6.2), "queue_seconds": (1032, 0.08)},
    "triton-26.06-synthetic": {"e2e_seconds": (1500, 6.5), "prompt_tokens": (1500, 1210), "output_tokens": (1500, 196)},
    "tgi-3.3.7-synthetic": {"itl_seconds": (401231, 0.024), "prefill_seconds": (2210, 0.19), "queue_seconds": (5120, 0.61),
                            "max_tokens_requested": (5120, 1024)},
    "llamacpp-b4400-synthetic": {"itl_seconds": (9120, 0.045)},
    "llamacpp-11434": {"itl_seconds": (900, 0.589891 / 900)},
    "lmdeploy-0.10.0-synthetic": {"itl_seconds": (410, 0.031), "tpot_seconds": (410, 0.03), "ttft_seconds": (410, 0.2)},
    "dynamo-1.0.0-synthetic": {"ttft_seconds": (300, 0.4), "itl_seconds": (60000, 0.022), "prompt_tokens": (300, 1400)},
    "vllm-0.10.0-synthetic": {"itl_seconds": (15400, 0.019), "iteration_tokens": (2100, 40)},
}  # fmt: skip
"""Capture → histogram of rank 0 → count and mean."""


GAUGES_THAT_COUNT = {"num_requests_failed", "nv_trt_llm_general_metrics"}
"""Exposed as gauges and never fall: a process that counts, a scheduler's iterations."""


def test_every_capture_is_in_the_table():
    assert {path.stem for path in CAPTURES.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_counter_of_the_catalogue_is_a_counter_of_the_page(name):
    """The page's own types agree with what a dialect takes its names for."""
    page, body = EnginePage("e"), captured(name)
    seen = page.read(body, 1.0).names
    types = dict(line.split()[2:4] for line in body.decode().splitlines() if line.startswith("# TYPE"))
    for signal, reading in page.dialect.signals.items():
        for theirs in {n for c in reading.choices for t in c.terms for n in t.full_names(page.prefix)} & seen:
            family = theirs if theirs in types else theirs.rpartition("_")[0]
            if theirs.removeprefix(page.prefix) in GAUGES_THAT_COUNT:
                continue
            counts = types[family] == "counter" or theirs.endswith(("_sum", "_count"))
            assert counts == (CATALOG[signal].kind == "counter"), (signal, theirs)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_says_what_a_person_reads_off_it(name):
    report = EnginePage("e").read(captured(name), 1.0)
    ranks = flat(report)
    assert sorted(ranks) == sorted(EXPECTED[name])
    for rank, signals in EXPECTED[name].items():
        assert {signal: ranks[rank].get(signal) for signal in signals} == pytest.approx(signals)
    assert report.dropped == 0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histograms_are_whole_and_in_seconds(name):
    report = EnginePage("e").read(captured(name), 1.0)
    found = {h.name: (h.count, h.sum / h.count) for h in report.histograms if h.subject.rank == 0}
    assert {n: found.get(n) for n in HISTOGRAMS[name]} == {
        n: pytest.approx(v, rel=1e-3) for n, v in HISTOGRAMS[name].items()
    }


def test_what_a_page_says_of_its_engine_is_kept():
    said = {name: facts_of(EnginePage("e").read(captured(name), 1.0)) for name in EXPECTED}
    assert said["trtllm-1.3.0-synthetic"][0]["model"] == "llama-3.3-70b"
    assert said["trtllm-1.3.0-synthetic"][0]["quantization"] == "FP8"
    assert said["sglang-0.5.18-synthetic"][0]["model"] == "qwen3-32b"
    assert said["lmdeploy-0.10.0-synthetic"][0]["max_num_seqs"] == "128"
    assert said["triton-26.06-synthetic"][0]["model"] == "tensorrt_llm"
    assert said["dynamo-1.0.0-synthetic"][1]["model"] == "qwen3-32b"
    assert "model" not in said["trtllm-1.1.0-synthetic"][0], "a model called undefined is none"
    assert said["vllm-0.33.0-ray-synthetic"][1]["rank"] == "engine=0,ReplicaId=llm#r2,WorkerId=w2"


@pytest.mark.parametrize("name", EXPECTED)
def test_pages_come_apart_into_lanes_and_say_the_same(name):
    """A filtered answer with the names that a lane asks for carries the same values as the whole page."""
    whole = EnginePage("e")
    body = captured(name)
    seen = whole.read(body, 1.0)
    assert whole.dialect is not None
    for lane, names in (("fast", whole.dialect.fast_names), ("slow", whole.dialect.slow_names)):
        asked = set(names(whole.prefix, seen.names))
        kept = [line for line in body.splitlines() if line.split(b"{")[0].split(b" ")[0].decode() in asked]
        part = flat(whole.read(b"\n".join(kept) + b"\n", 2.0, lane))
        for rank, signals in part.items():
            everything = flat(seen)[rank]
            assert {n: repr(v) for n, v in signals.items()} == {n: repr(everything[n]) for n in signals}
    assert len(part) == len(flat(seen))
    assert set(part[0]) >= {n for n in flat(seen)[0] if n not in whole.dialect.from_facts}, "the slow lane has all"
