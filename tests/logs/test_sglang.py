"""SGLang's batch lines from 0.2 to 0.5.2x, retractions, refusals, leaks and transfers."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import pytest

from tests.logs.told import facts, kinds, last, notices, only, read, rows

TAG = "[2025-06-12 11:41:56 TP0] "
DECODES = {
    "0.2": "[gpu=0] Decode batch. #running-req: 36, #token: 9580, token usage: 0.96, gen throughput (token/s): 429.5, "
    "#queue-req: 3",
    "0.4.6": TAG
    + "Decode batch. #running-req: 36, #token: 9580, token usage: 0.96, accept len: 3.64, cuda graph: True, gen "
    "throughput (token/s): 429.5, #queue-req: 3, ",
    "0.5.4": TAG + "Decode batch [1204], #running-req: 36, #token: 9580, token usage: 0.96, cuda graph: True, "
    "gen throughput (token/s): 429.5, #queue-req: 3, ",
    "0.5.5": TAG + "Decode batch, #running-req: 36, #token: 9580, token usage: 0.96, npu graph: False, "
    "gen throughput (token/s): 429.5, #queue-req: 3",
    "hybrid with a sliding window": TAG
    + "Decode batch, #running-req: 36, #full token: 26426, full token usage: 0.96, #swa "
    "token: 1459, swa token usage: 0.06, cuda graph: True, gen throughput (token/s): 429.5, #queue-req: 3",
    "hybrid with a state space": TAG
    + "Decode batch, #running-req: 36, #full token: 1, full token usage: 0.10, mamba num: 7, "
    "mamba usage: 0.96, gen throughput (token/s): 429.5, #queue-req: 3",
    "with accept rate and MFU": TAG
    + "Decode batch, #running-req: 36, #token: 9580, token usage: 0.96, accept rate: 0.61, gen "
    "throughput (token/s): 429.5, #queue-req: 3, est. decode TFLOPS/s (per GPU): 3.10, est. read BW (GB/s per GPU): 900.00",
}
SAID = {"req_running": 36.0, "req_waiting": 3.0, "kv_usage_ratio": 0.96, "generated_tokens_per_second": 429.5}


@pytest.mark.parametrize("line", DECODES.values(), ids=DECODES)
def test_decode_lines_of_every_version(line):
    found = read(line)
    assert found.engine_kind == "sglang"
    assert only(found, SAID) == pytest.approx(SAID)


def test_prefill_lines_count_what_was_computed_and_what_was_found():
    prefill = "Prefill batch{} #new-seq: 8, #new-token: 16384, #cached-token: 2048, token usage: 0.19, #running-req: 370, #queue-req: 646"
    found = read(
        TAG + prefill.format(".") + ", cache hit rate: 11.11%",
        "[2025-06-12 11:41:57 TP0] "
        + prefill.format(" [7],")
        + ", #pending-token: 900, input throughput (token/s): 20000.5, "
        "cuda graph: True, fwd occupancy: 95.49%",
    )
    row = last(found)
    assert (row["prompt_tokens_total"], row["prefix_query_tokens_total"], row["prefix_hit_tokens_total"]) == (
        32768,
        36864,
        4096,
    )
    assert row["prefix_hit_ratio"] == pytest.approx(0.1111)
    assert row["prompt_tokens_per_second"] == 20000.5
    assert (row["req_running"], row["req_waiting"], row["kv_usage_ratio"]) == (370, 646, 0.19)


def test_a_line_that_only_looks_like_stats_is_none():
    found = read(TAG + "Cache not flushed because there are pending requests. #queue-req: 3, #running-req: 5")
    assert not found.calls


def test_data_parallel_tags_are_ranks_and_tensor_parallel_twins_are_not():
    line = (
        "Decode batch, #running-req: {}, #token: 1920, token usage: 0.94, gen throughput (token/s): 9.0, #queue-req: 0"
    )
    found = read(
        "[2025-11-12 11:41:56 DP6 TP6 EP6] " + line.format(6),
        "[2025-11-12 11:41:56 TP0 EP0] " + line.format(7),
        "[2025-11-12 11:41:56 TP1 EP1] " + line.format(7),
    )
    assert last(found, 6)["req_running"] == 6.0
    assert [row["req_running"] for row in rows(found, 0)] == [7.0]
    assert rows(found, 1) == []
    unknown = "2026-09-27T00:15:25.500Z pod-rhkt6 INFO DP2 TP2] "
    assert last(read(unknown + line.format(5)), 2)["req_running"] == 5.0


def test_requests_that_wait_for_the_other_side_wait():
    found = read(
        TAG
        + "Decode batch, #running-req: 9, #token: 10, token usage: 0.50, pre-allocated usage: 0.90, #prealloc-req: 4, "
        "#transfer-req: 2, #retracted-req: 1, gen throughput (token/s): 9.0, #queue-req: 3"
    )
    assert only(found, ["req_waiting", "req_waiting_deferred", "kv_usage_ratio"]) == {
        "req_waiting": 10.0,
        "req_waiting_deferred": 6.0,
        "kv_usage_ratio": 0.5,
    }


def test_a_rate_that_counts_over_a_pause_is_dropped():
    line = "[2025-06-12 11:{}:{:02d} TP0] Decode batch. #running-req: 4, #token: 9, token usage: 0.10, gen throughput (token/s): {}, #queue-req: 0"
    found = read(
        line.format(41, 0, 400.0), line.format(41, 1, 400.0), line.format(45, 0, 1.7), line.format(45, 1, 400.0)
    )
    assert found.diluted == 1
    after = [row for row in rows(found) if row["at"] >= rows(found)[0]["at"] + 240]
    assert "generated_tokens_per_second" not in after[0]
    assert after[-1]["generated_tokens_per_second"] == 400.0
    assert "1 rates counted over a pause and were not used" in found.notes


RETRACTIONS = {
    "0.4.3": ("Decode out of memory happened. #retracted_reqs: 2, #new_token_ratio: 0.1000 -> 0.4000", {}),
    "0.4.9": ("KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.1000 -> 0.4000", {}),
    "0.5.3": (
        (
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, #aborted_retracted_reqs: 1, #new_token_ratio: 0.1000 -> "
            "0.4000"
        ),
        {"aborted": "1"},
    ),
    "0.5.18": (
        (
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 900, #mamba_num_gained: 3, "
            "#new_token_ratio: 0.1000 -> 0.4000"
        ),
        {"gained_tokens": "900"},
    ),
}


@pytest.mark.parametrize(("line", "more"), RETRACTIONS.values(), ids=RETRACTIONS)
def test_retractions_of_every_version_are_preemptions(line, more):
    found = read(TAG + line, TAG.replace("TP0", "TP1") + line)
    ratios = {"new_token_ratio_from": "0.1", "new_token_ratio_to": "0.4"}
    assert notices(found) == [{"kind": "retraction", "retracted": "2", **more, **ratios}]
    assert last(found)["req_preempted_total"] == 2.0


def test_a_retraction_that_is_a_test_is_none():
    assert kinds(read(TAG + "Testing retraction. KV cache pool is full. Retract requests. #retracted_reqs: 2")) == []


def test_limits_of_the_start():
    found = read(
        TAG
        + "max_total_num_tokens=446580, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, "
        "context_len=32768, available_gpu_mem=7.50 GB"
    )
    assert facts(found) == {
        "kv_capacity_tokens": "446580",
        "max_num_batched_tokens": "8192",
        "max_prefill_tokens": "16384",
        "max_num_seqs": "2048",
        "max_model_len": "32768",
        "free_memory_bytes": str(int(7.5 * 2**30)),
    }


MESSAGES = {
    "Prefill out of memory. Try to lower your batch size.": {"kind": "out_of_memory", "phase": "prefill"},
    "Decode out of memory. Try to lower your batch size.": {"kind": "out_of_memory", "phase": "decode"},
    "scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)": {
        "kind": "watchdog_timeout",
        "seconds": "300",
    },
    "Subprocess scheduler_0 (pid=77) crashed with exit code -9.": {"kind": "process_crashed", "code": "-9"},
    "The request queue is full.": {"kind": "queue_full"},
    "Request waiting timeout reached.": {"kind": "queue_timeout"},
    "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.": {
        "kind": "health_failed",
        "seconds": "20",
    },
    "token_to_kv_pool_allocator memory leak detected!": {"kind": "memory_leak_detected"},
    "pool memory leak detected! [full] total=900, available=100, evictable=700, protected=0": {
        "kind": "memory_leak_detected",
        "total": "900",
        "available": "100",
        "evictable": "700",
        "protected": "0",
    },
    "Decode transfer failed for request rank=0 decode_req timed out after 600.0s in KVPoll.WaitingForInput": {
        "kind": "transfer_timeout",
        "seconds": "600",
    },
    "Prefill bootstrap failed for request rank=0": {"kind": "transfer_failed"},
    "Req Time Stats(rid=77, queue_duration=1250.00ms, forward_duration=80.00ms, entry_time=3)": {
        "kind": "request",
        "queue_seconds": "1.25",
        "inference_seconds": "0.08",
    },
}


@pytest.mark.parametrize("line", MESSAGES)
def test_messages_are_kinds(line):
    assert notices(read(TAG + line)) == [MESSAGES[line]]


def test_a_flood_of_orphans_is_one_notice_a_second():
    orphan = "Received output for rid='r-{:04d}' but the state was deleted in TokenizerManager."
    found = read(*("[2026-08-28 09:00:01] " + orphan.format(i) for i in range(3000)))
    assert notices(found) == [{"kind": "orphan_output", "count": "3000"}]


def test_a_prefill_engine_shows_its_handshakes_and_what_is_in_flight():
    line = (
        "[2025-01-02 03:04:05] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #prealloc-req: 18, #inflight-req: 1, cuda graph: False"
    )
    row = last(read(line))
    assert (row["req_waiting_bootstrap"], row["req_transferring"]) == (18, 1)


def test_a_decode_engine_shows_what_waits_for_memory_and_what_is_on_its_way():
    line = (
        "[2025-01-02 03:04:05] Decode batch, #running-req: 4, #token: 900, token usage: 0.10, #prealloc-req: 7, "
        "#transfer-req: 2, #retracted-req: 0, gen throughput (token/s): 90.0, #queue-req: 0"
    )
    row = last(read(line))
    assert (row["req_waiting_prealloc"], row["req_transferring"]) == (7, 2)
