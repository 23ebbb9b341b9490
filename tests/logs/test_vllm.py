"""vLLM's lines from 0.1 to the Rust front end say the same things under the catalogue's names, in base units."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.logs.told import facts, kinds, last, notices, only, read, rows, v1

V0 = (
    "INFO 02-01 06:36:05 llm_engine.py:624] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: 118.5 tokens/s, "
    "Running: 35 reqs, Swapped: 2 reqs, Pending: 115 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 1.0%"
)
V1 = (
    "INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: 118.5 "
    "tokens/s, Running: 35 reqs, Waiting: 117 reqs, GPU KV cache usage: 99.0%, Prefix cache hit rate: 25.0%"
)
RUST = (
    "2026-10-02T10:00:00.123456Z  INFO vllm_frontend::stats: Avg prompt tput: 382.6 toks/s, Avg generation tput: 118.5 toks/s, "
    "Reqs Running: 35, Waiting: 117, Deferred: 17 reqs, Preemptions: 3, GPU KV cache used: 99.0%, Prefix cache hit rate: 25.0%"
)
SAID = {
    "req_running": 35.0,
    "req_waiting": 117.0,
    "kv_usage_ratio": 0.99,
    "prompt_tokens_per_second": 382.6,
    "generated_tokens_per_second": 118.5,
}

FORMS = {
    "0.3, without a full stop": V0,
    "0.5.x metrics.py with a full stop": V0.replace("llm_engine.py:624", "metrics.py:349") + ".",
    "0.8 with a bracketed location": V0.replace("llm_engine.py:624]", "[metrics.py:488]") + ".",
    "V1 of 0.8": V1,
    "first V1, without an engine": V1.replace("Engine 000: ", ""),
    "V1 with a process tag": "(APIServer pid=17) " + V1.replace(":118", ":273"),
    "V1 with all optional fields": V1.replace("GPU KV", "Deferred: 5 reqs, Preemptions: 2, GPU KV")
    + ", Corrupted: 0 reqs, External prefix cache hit rate: 3.0%, MM cache hit rate: 0.0%",
    "V1 on a CPU": V1.replace("GPU KV", "CPU KV"),
    "V1 on another device": V1.replace("GPU KV", "XPU KV"),
    "aggregated over engines": V1.replace("Engine 000", "4 Engines Aggregated"),
    "Rust front end": RUST,
    "a vendor's build": V0.replace("Running", "Max iteration time: 386.7 ms, Avg time/tok:149.4 ms, Running"),
    "behind a container's time": "2025-07-28T06:40:59.756689123Z " + V1,
    "behind CRI": "2025-07-28T06:40:59.756689123Z stdout F " + V1,
    "behind journald": "Jul 28 06:40:59 node7 bash[123]: " + V1,
    "behind kubectl --prefix": "[pod/vllm-0/server] " + V1,
    "behind compose": "vllm-1  | " + V1,
    "in colours": "\x1b[36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m " + V1.removeprefix("INFO "),
    "as docker writes it": '{"log":"' + V1 + '\\n","stream":"stdout","time":"2025-07-28T06:40:59.1Z"}',
}


@pytest.mark.parametrize("line", FORMS.values(), ids=FORMS)
def test_every_form_says_the_same(line):
    found = read(line)
    assert found.engine_kind == "vllm"
    assert only(found, SAID) == pytest.approx(SAID)
    assert found.unread == 0


def test_deferred_requests_are_waiting_ones_apart():
    row = last(read(RUST))
    assert (row["req_waiting"], row["req_waiting_deferred"], row["req_waiting_capacity"]) == (117.0, 17.0, 100.0)
    assert row["req_preempted_total"] == 3.0


def test_hit_rates_are_ratios():
    assert last(read(V1))["prefix_hit_ratio"] == 0.25
    row = last(read(V0, "INFO 02-01 06:36:05 metrics.py:361] Prefix cache hit rate: GPU: 94.35%, CPU: 0.00%"))
    assert row["prefix_hit_ratio"] == pytest.approx(0.9435)


def test_what_is_left_out_is_not_zero():
    assert "req_waiting_deferred" not in last(read(V1))
    assert "req_preempted_total" not in last(read(V1))


PAIRS = (
    "Avg generation throughput: 118.5 tokens/s",
    "Running: 35 reqs",
    "Waiting: 117 reqs",
    "GPU KV cache usage: 99.0%",
    "Something new: 7 quarks",
    "Made of words: none",
)


@settings(deadline=None, max_examples=40)
@given(st.permutations(PAIRS))
def test_order_does_not_matter_and_unknown_fields_are_skipped(pairs):
    line = "INFO 07-28 06:40:59 [loggers.py:400] Engine 002: " + ", ".join(
        ("Avg prompt throughput: 382.6 tokens/s", *pairs)
    )
    assert only(read(line), SAID, rank=2) == pytest.approx(SAID)


def test_each_engine_of_a_data_parallel_group_is_a_rank():
    found = read(
        v1(0, 16.5, 1157.2, 51, 117, 100.0, "Engine 000"),
        v1(0, 0.0, 809.3, 31, 108, 98.6, "Engine 003"),
    )
    assert [last(found, rank)["req_running"] for rank in (0, 3)] == [51.0, 31.0]
    assert found.calls[0][0] == found.calls[-1][0]


def test_rates_become_counters_over_the_time_they_were_measured_over():
    found = read(v1(0, 10.0, 100.0, 4, 0, 10.0), v1(10, 0.0, 50.0, 4, 0, 10.0))
    tokens = [row["generated_tokens_total"] for row in rows(found)]
    assert tokens == pytest.approx([1000.0 + 50.0 * second for second in range(11)])
    assert rows(found)[-1]["prompt_tokens_total"] == pytest.approx(100.0)


def test_preemptions_of_v0_are_a_counter_and_a_notice():
    warning = (
        "WARNING 04-25 12:26:07 scheduler.py:1141] Sequence group chat-0123 is preempted by PreemptionMode.{} mode because "
        "there is not enough KV cache space. This can affect the end-to-end performance. total_{}={}"
    )
    found = read(
        warning.format("RECOMPUTE", "num_cumulative_preemption", 1),
        warning.format("SWAP", "cumulative_preemption_cnt", 51),
    )
    assert notices(found) == [
        {"kind": "preemption", "mode": "recompute", "total": "1"},
        {"kind": "preemption", "mode": "swap", "total": "51"},
    ]
    assert last(found)["req_preempted_total"] == 51.0


SPECULATION = {
    "Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative tokens: 3, "
    "Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.": (
        8547,
        13311,
        0.6421,
    ),
    "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens": (66, 66, 1.0),
    "SpecDecoding metrics: Mean acceptance length: 1.97, Accepted throughput: 63.00 tokens/s, Drafted throughput: 65.20 "
    "tokens/s, Accepted: 630 tokens, Drafted: 652 tokens, Per-position acceptance rate: 0.966, 0.467, Avg Draft acceptance "
    "rate: 96.6%": (630, 652, 0.9663),
}


@pytest.mark.parametrize("line", SPECULATION)
def test_speculation_of_every_version(line):
    accepted, drafted, ratio = SPECULATION[line]
    (notice,) = notices(read("INFO 04-09 11:17:53 [metrics.py:101] " + line))
    assert (notice["accepted"], notice["drafted"]) == (str(accepted), str(drafted))
    assert float(notice["acceptance_ratio"]) == pytest.approx(ratio, abs=1e-4)


def test_single_iterations_are_steps():
    found = read(
        *(
            f"(EngineCore_DP0 pid=5) INFO 12-22 21:44:40 [core.py:349] Iteration({515 + i}): 1 context requests, 512 context "
            f"tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: {ms} ms"
            for i, ms in enumerate((10.99, 250.5, 11.2))
        )
    )
    assert [row["step_seconds"] for row in rows(found)] == pytest.approx([0.01099, 0.2505, 0.0112])
    assert last(found)["steps_total"] == 517.0
    (worst,) = notices(found)
    assert worst["count"] == "3"
    assert float(worst["seconds"]) == pytest.approx(0.2505)


def test_the_start_says_sizes_and_phases():
    found = read(
        "INFO 06-19 23:04:00 [api_server.py:1] vLLM API server version 0.10.1.1",
        "INFO 06-19 23:04:00 [utils.py:1] non-default args: {'model': '/models/x', 'max_num_seqs': 64, 'max_model_len': 8192}",
        "INFO 06-19 23:05:01 [loader.py:447] Loading weights took 0.69 seconds",
        "INFO 06-19 23:05:01 [gpu_model_runner.py:1273] Model loading took 3.5000 GiB and 0.902026 seconds",
        "INFO 06-19 23:05:18 [monitor.py:33] torch.compile takes 7.51 s in total",
        "INFO 06-19 23:05:18 [gpu_worker.py:1] Available KV cache memory: 8.50 GiB",
        "INFO 06-19 23:05:18 [kv_cache_utils.py:578] GPU KV cache size: 613,024 tokens",
        "INFO 06-19 23:05:18 [kv_cache_utils.py:581] Maximum concurrency for 131,072 tokens per request: 4.68x",
        "INFO 06-19 23:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 17 secs, took 0.50 GiB",
        "INFO 06-19 23:05:35 [core.py:162] init engine (profile, create kv cache, warmup model) took 34.11 seconds",
        "INFO 06-19 23:05:35 Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page size.",
    )
    assert facts(found) == {
        "engine_version": "0.10.1.1",
        "max_num_seqs": "64",
        "max_model_len": "131072",
        "kv_memory_bytes": str(int(8.5 * 2**30)),
        "kv_capacity_tokens": "613024",
        "kv_max_concurrency": "4.68",
        "kv_block_tokens": "528",
    }
    assert kinds(found) == ["weights_loaded", "model_loaded", "compiled", "graphs_captured", "engine_initialised"]
    assert [n["seconds"] for n in notices(found)] == ["0.69", "0.902026", "7.51", "17", "34.11"]


def test_blocks_and_memory_of_v0():
    found = read(
        "INFO 04-25 12:26:07 gpu_executor.py:83] # GPU blocks: 1464, # CPU blocks: 1310",
        "INFO 04-25 12:26:07 worker.py:1] model weights take 12.50GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak "
        "memory takes 2.50GiB; the rest of the memory reserved for KV Cache is 56.25GiB.",
    )
    assert facts(found) == {
        "kv_total_blocks": "1464",
        "weights_bytes": str(int(12.5 * 2**30)),
        "activation_bytes": str(int(2.5 * 2**30)),
        "kv_memory_bytes": str(int(56.25 * 2**30)),
    }


def test_other_messages_are_kinds():
    found = read(
        "(Worker_DP6_EP6 pid=1) ERROR 08-01 12:42:13 [mooncake_connector.py:1899] pulling kv_caches for ['00001'] failed: "
        "Timeout waiting for P side ready.",
        "(Worker_DP6_EP6 pid=1) ERROR 08-01 12:42:14 [mooncake_connector.py:1899] pulling kv_caches for ['00002'] failed: reset",
        "INFO 08-01 12:42:15 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 second(s). This "
        "typically happens when some processes are hanging.",
        "INFO 08-01 12:42:16 [async_llm.py:1] Aborted request(s) chatcmpl-77.",
        "ERROR 08-01 12:42:17 [multiproc_executor.py:1] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
    )
    assert kinds(found) == [
        "transfer_timeout",
        "transfer_failed",
        "broadcast_block_wait",
        "aborted",
        "process_crashed",
    ]
    assert notices(found)[2]["seconds"] == "60"


def test_the_summary_of_transfers_tells_their_speed_and_the_failed_ones():
    line = (
        "(APIServer pid=1) INFO 01-02 03:04:05 [metrics.py:98] KV Transfer metrics: Num successful transfers=3, Avg xfer time "
        "(ms)=9.9, Avg MB per transfer=70.0, Throughput (MB/s)=512.0, Avg number of descriptors=56.0"
    )
    assert rows(read(line))[-1]["kv_transfer_bytes_per_second"] == 512 * 2**20
    assert kinds(read(line)) == []
    assert kinds(read(line + ", Num failed transfers=4")) == ["transfer_failed"]
