"""TGI, TensorRT-LLM, llama.cpp and LMDeploy: what each of their lines tells."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import pytest

from tests.logs.told import count, facts, kinds, last, notices, only, read, rows

TGI = (
    "2025-05-01T01:31:02.842858Z  INFO {}{{parameters=GenerateParameters {{ best_of: None, temperature: Some(0.7), grammar: {}, "
    'seed: None }} total_time="4.5s" validation_time="5.669107ms" queue_time="1.500µs" inference_time="4.0s" '
    'time_per_token="20ms" seed="None"}}: text_generation_router::server: router/src/server.rs:407: Success'
)
TGI_JSON = (
    '{"timestamp":"2025-05-01T01:31:02.842858Z","level":"INFO","message":"Success","target":"text_generation_router::server",'
    '"filename":"router/src/server.rs","line_number":407,"span":{"inference_time":"4.0s","queue_time":"1.500µs",'
    '"time_per_token":"20ms","total_time":"4.5s","validation_time":"5.669107ms","name":"generate"}}'
)


@pytest.mark.parametrize("line", [TGI.format("generate", "None"), TGI.format("chat_completions", "None"), TGI_JSON])
def test_tgi_tells_each_request(line):
    found = read(line)
    assert found.engine_kind == "tgi"
    assert notices(found) == [
        {
            "kind": "request",
            "total_seconds": "4.5",
            "validation_seconds": "0.00566911",
            "queue_seconds": "1.5e-06",
            "inference_seconds": "4",
            "token_seconds": "0.02",
        }
    ]
    assert only(found, ["req_finished_total", "generated_tokens_total"]) == {
        "req_finished_total": 1.0,
        "generated_tokens_total": 200.0,
    }
    assert count(found, "e2e_seconds") == {"count": 1.0, "sum": 4.5}
    assert count(found, "tpot_seconds") == {"count": 1.0, "sum": 0.02}


def test_a_grammar_of_tgi_is_told_apart():
    found = read(TGI.format("generate", "Some(Json(Object {}))"))
    assert kinds(found) == ["request", "grammar"]


def test_of_many_requests_in_a_second_the_one_that_waited_longest_is_told():
    slow = TGI.format("generate", "None").replace("1.500µs", "2m41.5s")
    found = read(*[TGI.format("generate", "None")] * 5, slow, *[TGI.format("generate", "None")] * 5)
    (worst,) = notices(found)
    assert (worst["count"], worst["queue_seconds"]) == ("11", "161.5")
    assert last(found)["req_finished_total"] == 11.0


def test_errors_of_tgi():
    found = read(
        "2025-05-01T01:31:02.842858Z ERROR batch{batch_size=3}:prefill:generate_stream:infer:send_error: "
        "text_generation_router::infer: router/src/infer.rs:876: Request failed during generation: Server error: transport error"
    )
    assert notices(found) == [{"kind": "request_failed", "batch_size": "3"}]


STEP = (
    "[04/28/2025-09:56:44] [TRT-LLM] [I] iter = 198, global_rank = 0, rank = 0, currank_total_requests = 0/0, elapsed_time = "
    "0.0125s, timestamp = 2025-04-28 09:56:44, num_scheduled_requests: 10, states = {'num_ctx_requests': 1, 'num_ctx_tokens': "
    "512, 'num_generation_tokens': 16}"
)
NEWER = (
    "[08/04/2026-19:08:13] [TRT-LLM] [I] [_torch][RANK 3] iter = 198, global_rank = 3, rank = 3, num_scheduled_requests = 10, "
    "kv_cache_util = 0.125, currank_total_requests = 7/28, host_step_time = 12.5ms, prev_device_step_time = 1456.7ms, timestamp "
    "= 2026-08-04 19:08:13, states = {'num_ctx_requests': 1, 'num_ctx_tokens': 512, 'num_generation_tokens': 16, "
    "'cached_kv_tokens': 63821}, num_active = 14, num_unscheduled = 4"
)


def test_iterations_of_tensorrt_llm():
    said = {"step_seconds": 0.0125, "step_prefill_tokens": 512.0, "step_decode_tokens": 16.0, "steps_total": 198.0}
    assert only(read(STEP), [*said, "req_running"]) == pytest.approx(said | {"req_running": 10.0})
    assert "req_arrived_total" not in last(read(STEP)), "0/0 means that nobody counts"
    newer = read(NEWER)
    assert only(newer, [*said, "kv_usage_ratio", "req_waiting", "req_arrived_total"], rank=3) == pytest.approx(
        said | {"kv_usage_ratio": 0.125, "req_waiting": 4.0, "req_arrived_total": 7.0}
    )
    assert notices(newer)[0]["seconds"] == "0.0125", "the device's time of the step before holds the idle time"


def test_a_log_without_times_is_laid_out_by_the_steps_it_tells():
    line = "[TRT-LLM] [I] iter = {}, global_rank = 0, rank = 0, host_step_time = 5000.0ms, states = {{'num_ctx_tokens': 0}}"
    found = read(*(line.format(i) for i in range(4)), start_at=1000.0)
    assert [row["at"] for row in rows(found)] == [1000.0, 1005.0, 1010.0, 1015.0]
    assert not found.timed
    assert "the log has no times: its lines are laid out in order, and durations are not known" in found.notes


def test_the_cpp_runtime_of_tensorrt_llm():
    found = read(
        'I0510 07:57:30.770724 21661 model_instance_state.cc:840] {"Active Request Count":5,"Iteration Counter":2,"Max Request '
        'Count":8,"Runtime CPU Memory Usage":500,"Timestamp":"05-10-2024 07:57:30","Context Requests":0,"Generation Requests":3,'
        '"MicroBatch ID":0,"Paused Requests":1,"Scheduled Requests":3,"Total Context Tokens":0,"Free KV cache blocks":10,'
        '"Max KV cache blocks":40,"Tokens per KV cache block":64,"Used KV cache blocks":30}'
    )
    assert found.engine_kind == "trtllm"
    said = {
        "req_running": 3,
        "req_waiting": 2,
        "kv_used_blocks": 30,
        "kv_total_blocks": 40,
        "kv_usage_ratio": 0.75,
        "steps_total": 2,
    }
    assert only(found, said) == said
    assert facts(found) == {"max_num_seqs": "8", "kv_block_tokens": "64"}


def test_messages_of_tensorrt_llm():
    found = read(
        "[TRT-LLM] [W] Skipped adding dummy requests: num_fetch_requests=1024, num_schedulable_requests=144",
        "[TRT-LLM] Address(host='127.0.0.1', port=60652) is disconnected, abort 2",
        "[kv cache manager] storeContextBlocks: Can not find sequence for request 8",
    )
    assert notices(found) == [
        {"kind": "dummy_skipped", "fetch": "1024", "schedulable": "144"},
        {"kind": "client_disconnected"},
        {"kind": "sequence_not_found"},
    ]


LLAMA_2023 = (
    "slot 0 is processing [task id: 205]",
    "slot 0 : kv cache rm - [347, end)",
    "print_timings: prompt eval time =     845.49 ms /   934 tokens (    0.91 ms per token,  1104.68 tokens per second)",
    "print_timings:        eval time =   13463.77 ms /   352 runs   (   38.25 ms per token,    26.14 tokens per second)",
    "print_timings:       total time =   14309.26 ms",
    "slot 0 released (1634 tokens in cache)",
)
LLAMA_2024 = (
    'INFO [   launch_slot_] slot is processing task | tid="1" timestamp=1717000000 id_slot=0 id_task=1',
    "prompt eval time =     845.49 ms /   934 tokens (    0.91 ms per token,  1104.68 tokens per second)",
    "       eval time =   13463.77 ms /   352 tokens (   38.25 ms per token,    26.14 tokens per second)",
    'INFO [   update_slots] slot released | tid="1" timestamp=1717000015 id_slot=0 id_task=1 n_past=1286 truncated=false',
)
LLAMA_2026 = (
    "0.16.816.562 I slot launch_slot_: id  0 | task 388 | processing task, is_child = 0",
    "0.35.716.244 I slot print_timing: id  0 | task 388 | n_decoded =    172, tg =  12.00 t/s",
    "0.37.495.377 I slot print_timing: id  0 | task 388 | ",
    "prompt eval time =     845.49 ms /   934 tokens (    0.91 ms per token,  1104.68 tokens per second)",
    "       eval time =   13463.77 ms /   352 tokens (   38.25 ms per token,    26.14 tokens per second)",
    "0.37.495.428 I slot      release: id  0 | task 388 | stop processing: n_tokens = 1286, truncated = 0",
)


@pytest.mark.parametrize("lines", [LLAMA_2023, LLAMA_2024, LLAMA_2026], ids=["2023", "2024", "2026"])
def test_llamacpp_tells_slots_and_timings(lines):
    found = read(*lines)
    assert found.engine_kind == "llamacpp"
    running = [row["req_running"] for row in rows(found) if "req_running" in row]
    assert (max(running), running[-1]) == (1.0, 0.0)
    assert only(found, ["prompt_tokens_total", "generated_tokens_total", "req_finished_total"]) == {
        "prompt_tokens_total": 934.0,
        "generated_tokens_total": 352.0,
        "req_finished_total": 1.0,
    }
    assert count(found, "prefill_seconds") == {"count": 1.0, "sum": 0.84549}
    assert count(found, "decode_seconds") == {"count": 1.0, "sum": 13.46377}
    assert "req_waiting" not in last(found), "nobody says who waits"


def test_uptime_places_the_lines_of_llamacpp():
    found = read(*LLAMA_2026, start_at=1000.0)
    assert found.timed
    assert found.last_at - found.first_at == pytest.approx(20.678866)
    assert rows(found)[1]["at"] - rows(found)[0]["at"] <= 1.0, "a slot stays taken between its lines"


def test_the_speed_of_llamacpp_is_that_of_all_slots():
    speed = "slot print_timing: id  {} | task 3 | n_decoded =    172, tg =  {} t/s"
    found = read(speed.format(0, 12.0), speed.format(1, 8.5), speed.format(0, 10.0))
    assert last(found)["generated_tokens_per_second"] == 18.5
    assert last(found)["req_running"] == 2.0


def test_messages_of_llamacpp():
    found = read(
        "slot 0: context shift - n_keep = 2224, n_left = 3894, n_discard = 1947",
        "slot update_slots: id  0 | task 1 | slot context shift, n_keep = 0, n_left = 4095, n_discard = 2047",
        "slot unavailable",
        "slot update_slots: id  0 | task 124 | forcing full prompt re-processing due to lack of cache data (likely due to SWA)",
        "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size",
        "srv  send_error: request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "slot print_timing: id 0 | task 0 | draft acceptance = 0.54671 (  158 accepted /   289 generated), mean acceptance length "
        "=  2.63, acceptance rate per position = (0.7, 0.5)",
        "srv          stop: cancel task, id_task = 5",
    )
    assert notices(found) == [
        {"kind": "context_shift", "n_keep": "2224", "n_left": "3894", "n_discard": "1947"},
        {"kind": "context_shift", "n_keep": "0", "n_left": "4095", "n_discard": "2047"},
        {"kind": "slot_unavailable"},
        {"kind": "reprocessed"},
        {"kind": "kv_retry"},
        {"kind": "unschedulable", "need_tokens": "9000", "have_tokens": "4096"},
        {
            "kind": "spec_decode",
            "acceptance_ratio": "0.54671",
            "accepted": "158",
            "drafted": "289",
            "mean_acceptance_length": "2.63",
        },
        {"kind": "client_disconnected"},
    ]


@pytest.mark.parametrize("tag", ["DP3", "Engine 003"])
def test_lmdeploy_names_its_rank(tag):
    found = read(
        f"[2026-03-01 10:00:00 {tag}] Avg thr (in/out): 100.5 / 50.0 tokens/s, Engine (running/waiting): 8 / 4"
    )
    assert last(found, 3)["req_running"] == 8.0


def test_lmdeploy_tells_all_of_its_line():
    found = read(
        "[2026-03-01 10:00:00 DP1] Avg thr (in/out): 100.5 / 50.0 tokens/s, Server (succeeded/failed/routed/waiting): 9 / 1 / 12 / "
        "3, Engine (running/waiting): 8 / 4, KV cache: 70.5%, Prefix cache hit rate: 12.0%, SpecDecoding metrics: Draft "
        "acceptance rate: 50.0%, Mean acceptance length: 2.0, Accepted: 10 tokens, Drafted: 20 tokens, Per-position acceptance "
        "rate: 0.5"
    )
    assert found.engine_kind == "lmdeploy"
    assert last(found, 1) == pytest.approx(
        {
            "at": rows(found, 1)[0]["at"],
            "req_running": 8.0,
            "req_waiting": 7.0,
            "req_finished_total": 9.0,
            "kv_usage_ratio": 0.705,
            "prefix_hit_ratio": 0.12,
            "prompt_tokens_per_second": 100.5,
            "generated_tokens_per_second": 50.0,
            "prompt_tokens_total": 1005.0,
            "generated_tokens_total": 500.0,
        }
    )
    assert notices(found)[0]["acceptance_ratio"] == "0.5"


def test_a_slot_of_llamacpp_that_computes_its_prompt_shows_beside_one_that_generates():
    found = read(
        "0.10.000.000 I slot launch_slot_: id  0 | task 1 | processing task, is_child = 0",
        "0.13.000.000 I slot print_timing: id  0 | task 1 | n_decoded =    120, tg =  40.00 t/s, tg_3s =  41.00 t/s",
        "0.14.000.000 I slot launch_slot_: id  1 | task 2 | processing task, is_child = 0",
        "0.16.000.000 I slot print_timing: id  1 | task 2 | prompt processing, n_tokens =   4096, progress = 0.40, t =   2.00 s / "
        "2048.00 tokens per second",
        "0.17.000.000 I slot print_timing: id  0 | task 1 | n_decoded =    124, tg =  17.70 t/s, tg_3s =  1.25 t/s",
        "0.19.000.000 I slot print_timing: id  1 | task 2 | prompt processing, n_tokens =  10240, progress = 1.00, t =   5.00 s / "
        "2048.00 tokens per second",
    )
    starved = [row for row in rows(found) if row.get("prompt_tokens_per_second", 0) > 0]
    assert starved[-1]["generated_tokens_per_second"] == 1.25, "of the last seconds, not since the request began"
    assert starved[-1]["req_running"] == 2
    assert rows(found)[-1]["prompt_tokens_per_second"] == 0, "its prompt is done"


def test_a_prefill_that_does_not_fit_at_warm_up_says_so():
    line = "2025-01-02T03:04:05.1Z ERROR warmup: Not enough memory to handle 8192 prefill tokens. You need to decrease"
    assert notices(read(line)) == [{"kind": "does_not_fit", "need_tokens": "8192", "phase": "prefill"}]
