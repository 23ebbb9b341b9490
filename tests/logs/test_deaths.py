"""Processes that end or never come up, and hosts that run out of memory, become kinds with their numbers."""
# ruff: noqa: E501  (a line of a log is as long as it is)

from itertools import pairwise

import pytest

from gpuwatch.sources.logs.kinds import NOTICES
from tests.logs.told import facts, kinds, notices, read, rows

GIB = 2**30
SAID = {
    "(APIServer pid=7) ERROR 07-28 06:40:59 [core_client.py:1] Engine core proc EngineCore_DP3 died unexpectedly, shutting down client.": {"kind": "engine_dead"},
    "ERROR 07-28 06:40:59 multiproc_worker_utils.py:1] Worker VllmWorkerProcess pid 77 died, exit code: -11": {"kind": "process_crashed", "code": "-11"},
    "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.": {"kind": "process_crashed"},
    "CRITICAL 07-28 06:40:59 launcher.py:1] MQLLMEngine is already dead, terminating server process": {"kind": "engine_dead"},
    "RuntimeError: Engine core initialization failed. See root cause above.": {"kind": "start_failed"},
    "[2026-07-28 06:40:59] Received sigquit from a child process. It usually means the child failed.": {"kind": "process_crashed"},
    "[2026-07-28 06:40:59 TP0] Scheduler hit an exception: Traceback (most recent call last):": {"kind": "process_crashed"},
    "ValueError: The model's max seq len (9000) is larger than the maximum number of tokens that can be stored in KV cache (4000). Try": {"kind": "does_not_fit", "need_tokens": "9000", "have_tokens": "4000"},
    "ValueError: Free memory on device (10.5/79.0 GiB) on startup is less than desired GPU memory utilization (0.9, 71.0 GiB).": {"kind": "does_not_fit", "have_bytes": f"{10.5 * GIB:.0f}", "need_bytes": f"{71 * GIB}"},
    "Server error: Not enough memory to handle 4096 prefill tokens. You need to decrease": {"kind": "does_not_fit", "need_tokens": "4096",
        "phase": "prefill"},
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 0: cudaMalloc failed: out of memory": {"kind": "out_of_memory", "phase": "start", "asked_bytes": f"{2 * GIB}"},
    "[  9.5] Memory cgroup out of memory: Killed process 77 (python3) total-vm:9kB, anon-rss:2048kB, file-rss:1kB": {"kind": "killed_for_memory", "own": "1", "limited": "1", "resident_bytes": "2097152"},
    "[  9.5] Out of memory: Killed process 77 (backup) total-vm:9kB, anon-rss:2048kB": {"kind": "killed_for_memory", "own": "0", "limited": "0", "resident_bytes": "2097152"},
    "2026-07-28T06:40:59Z ERROR text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0": {"kind": "process_crashed", "code": "-9"},
    "[2026-07-28 06:40:59 TP4] Watchdog timeout (self.watchdog_timeout=300)": {"kind": "watchdog_timeout", "seconds": "300", "tp_rank": "4"},
    "[rank2]:[F ProcessGroupNCCL.cpp:1] [PG 2 Rank 2] [PG 2 Rank 2] ProcessGroupNCCL's watchdog got stuck for 600 seconds without": {"kind": "collective_timeout", "rank": "2", "seconds": "600", "tp_rank": "2"},
    "(VllmWorkerProcess pid=7) WARNING 07-28 06:40:59 shm_broadcast.py:1] No available block found in 60 second. ": {"kind": "broadcast_block_wait", "seconds": "60"},
    "(EngineCore_DP0 pid=7) WARNING 07-28 06:40:59 [nixl_connector.py:1] Releasing expired KV blocks for request x which were retrieved by 0 decode worker(s) within 120 seconds.": {"kind": "transfer_timeout", "seconds": "120"},
    "(Worker_TP0 pid=7) ERROR 07-28 06:40:59 [nixl_connector.py:1] NIXL transfer failure: handshake_setup_failed | Context: {}": {"kind": "transfer_failed"},
    "[2026-07-28 06:40:59 TP0] Some requests fail to receive KV Cache transfer done signal after bootstrapping. If": {"kind": "transfer_timeout"},
    "[2026-07-28 06:40:59 TP0] Prefill bootstrap failed for request rank=0 with exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.": {"kind": "aborted"},
    "ERROR 07-28 06:40:59 async_llm_engine.py:5] Engine background task failed": {"kind": "engine_dead"},
    "(EngineCore pid=7) ERROR 07-28 06:40:59 [core.py:1] EngineCore failed to start.": {"kind": "start_failed"},
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered": {"kind": "device_error"},
    "  what():  [TM][ERROR] CUDA runtime error: out of memory /src/allocator.h:7": {"kind": "out_of_memory"},
    "Jun 28 08:05:43 node systemd[1]: ollama.service: Failed with result 'oom-kill'.": {"kind": "killed_for_memory", "own": "1"},
    "Jun 28 08:05:43 node systemd[1]: backup.service: Failed with result 'oom-kill'.": {"kind": "killed_for_memory", "own": "0"},
    'time=2026-07-28T06:40:59.637Z level=ERROR source=server.go:1 msg="llama runner terminated" error="signal: killed"': {"kind": "process_crashed", "code": "-9"},
    'time=2026-07-28T06:40:59.637Z level=ERROR source=sched.go:1 msg="error loading llama server" error="llama runner process has terminated: exit status 2"': {"kind": "start_failed", "code": "2"},
}  # fmt: skip


@pytest.mark.parametrize("line", SAID)
def test_the_end_of_a_process_has_a_kind(line: str):
    assert notices(read(line)) == [SAID[line]]
    assert {said["kind"] for said in SAID.values()} <= set(NOTICES)


@pytest.mark.parametrize("line", [
    "2026-07-28T06:40:59Z  INFO text_generation_launcher: Shard process was signaled to shutdown with signal 15 rank=0",
    'time=2026-07-28T06:40:59.637Z level=ERROR msg="llama runner terminated" error="signal: terminated"',
    "Worker threads: 8", "[   9.5] oom_reaper: reaped process 77 (python3), now anon-rss:0kB",
    '[GIN] 2026/07/28 - 06:40:59 | 200 |      16.7µs |  ::1 | GET      "/"',
])  # fmt: skip
def test_what_is_told_to_end_or_is_no_end_has_none(line: str):
    assert kinds(read(line)) == []


def test_the_name_of_a_killed_process_is_not_kept():
    said = read("Memory cgroup out of memory: Killed process 77 (python3-of-mary) total-vm:9kB, anon-rss:2048kB")
    assert "mary" not in str(said.calls)


def test_an_access_line_is_a_finished_request_and_a_full_queue_is_told():
    line = '[GIN] 2026/07/28 - 06:40:{:02d} | {} | {} | 10.0.0.1 | POST     "/api/chat"'
    found = read(line.format(1, 200, "1.5s"), line.format(2, 200, "2m3.25s"), line.format(3, 503, "1ms"))
    assert rows(found)[-1]["req_finished_total"] == 2
    assert kinds(found) == ["queue_full"]


def test_a_quoted_and_torn_line_of_the_runtime_is_read_whole():
    found = read(
        'I0728 06:40:59.5 1 model_instance_state.cc:9] "{\\"Active Request Count\\":90,\\"Runtime CPU Memory Us',
        'age\\":9,\\"Scheduled Requests\\":6,\\"Max KV cache blocks\\":50,\\"Used KV cache blocks\\":40}"',
    )
    row = rows(found)[-1]
    assert (row["req_running"], row["req_waiting"], row["kv_usage_ratio"]) == (6, 84, 0.8)


def v0(second: int, rate: float, running: int = 9) -> str:
    return (
        f"INFO 07-28 06:{second // 60:02d}:{second % 60:02d} metrics.py:1] Avg prompt throughput: 0.0 tokens/s, Avg generation "
        f"throughput: {rate} tokens/s, Running: {running} reqs, Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 60.0%, "
        "CPU KV cache usage: 0.0%."
    )


def test_a_gap_that_ends_at_full_speed_is_lines_that_are_missing_and_not_a_standstill():
    cut = rows(read(v0(0, 900), v0(5, 900), v0(85, 800)))
    stood = rows(read(v0(0, 900), v0(5, 900), v0(85, 20)))
    assert max(b["at"] - a["at"] for a, b in pairwise(cut)) > 60, "nothing is told of the gap"
    assert max(b["at"] - a["at"] for a, b in pairwise(stood)) == 1, "requests stood inside"


def test_a_slot_that_is_taken_has_no_speed_until_it_says_one():
    found = rows(read(
        "srv  update_slots: all slots are idle",
        "slot launch_slot_: id  1 | task 9 | processing task, is_child = 0",
        "slot print_timing: id  1 | task 9 | n_decoded =    40, tg =  12.50 t/s",
    ))  # fmt: skip
    assert [row.get("generated_tokens_per_second") for row in found] == [0.0, None, 12.5]


def test_older_servers_say_how_many_slots_are_in_use():
    line = (
        '{{"function":"process_single_task","level":"INFO","msg":"slot data","n_idle_slots":6,"n_processing_slots":{}}}'
    )
    assert [row["req_running"] for row in rows(read(line.format(2), line.format(0)))] == [2, 0]


def test_tgi_says_its_pool_and_its_limits_when_it_starts():
    said = read(
        "2026-07-28T06:40:59.191040Z  INFO text_generation_launcher: KV-cache blocks: 9000, size: 16",
        "2026-07-28T06:41:01.047823Z  INFO text_generation_router_v3: backends/v3/src/lib.rs:1: Setting max batch total tokens to 144000",
        "2026-07-28T06:41:01.047870Z  INFO text_generation_router: src/main.rs:1: Maximum total tokens defaulted to 8192",
    )
    assert facts(said) == {
        "kv_total_blocks": "9000", "kv_block_tokens": "16", "kv_capacity_tokens": "144000", "max_model_len": "8192",
    }  # fmt: skip
    assert kinds(said) == []
