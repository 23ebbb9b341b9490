"""Errors that name a cause, from libraries, the kernel and exporters, become kinds with their numbers."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import pytest

from gpuwatch.sources.logs.kinds import NOTICES
from tests.logs.told import kinds, notices, read, rows, v1

GIB = 2**30
ERRORS = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.50 GiB of which 1.50 "
    "GiB is free. Process 77 has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, with 1.00 GiB "
    "allocated in private pools (e.g., CUDA Graphs), and 4.25 GiB is reserved by PyTorch but unallocated.": {
        "kind": "out_of_memory",
        "asked_bytes": f"{2.5 * GIB:.0f}",
        "total_bytes": f"{79.5 * GIB:.0f}",
        "free_bytes": f"{1.5 * GIB:.0f}",
        "allocated_bytes": f"{70 * GIB:.0f}",
        "private_bytes": f"{GIB:.0f}",
        "reserved_bytes": f"{4.25 * GIB:.0f}",
    },
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing.": {
        "kind": "does_not_fit",
        "have_bytes": "0",
    },
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, which is larger "
    "than the available KV cache memory (5.50 GiB). Based on": {
        "kind": "does_not_fit",
        "need_tokens": "131072",
        "need_bytes": f"{16 * GIB}",
        "have_bytes": f"{5.5 * GIB:.0f}",
    },
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace": {
        "kind": "engine_dead",
        "count": "2",
    },
    "[rank3]:[E822 16:31:16.13 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.": {
        "kind": "collective_timeout",
        "rank": "3",
        "operation": "allreduce",
        "seconds": "600.012",
        "tp_rank": "3",
    },
    "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, "
    "OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1800000 milliseconds before timing out.": {
        "kind": "collective_timeout",
        "rank": "1",
        "operation": "unknown",
        "seconds": "1800",
    },
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": {"kind": "ecc_error"},
    "WARNING 04-25 12:26:07 config.py:169] gptq quantization is not fully optimized yet. The speed can be slower than "
    "non-quantized models.": {"kind": "slow_kernel_fallback", "method": "gptq"},
    "WARNING 04-25 12:26:07 [marlin.py:1] Your GPU does not have native support for FP8 computation but FP8 quantization is being "
    "used.": {"kind": "slow_kernel_fallback", "method": "fp8"},
    "WARNING 04-25 12:26:07 scheduler.py:1] Input prompt (9000 tokens) is too long and exceeds limit of 8192": {
        "kind": "unschedulable",
        "need_tokens": "9000",
        "have_tokens": "8192",
    },
    "Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens). Use a shorter input": {
        "kind": "unschedulable",
        "need_tokens": "9000",
        "have_tokens": "8192",
    },
    "[  123.456789] NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.": {
        "kind": "xid",
        "code": "79",
        "pci": "0000:06:00",
    },
    "Jul 28 06:40:59 node7 kernel: NVRM: Xid (PCI:0000:B3:00): 45, pid=77, name=python3, Ch 00000001 caused by previous Xid 149": {
        "kind": "xid",
        "code": "45",
        "pci": "0000:b3:00",
        "previous": "149",
    },
    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to "
    "commands.": {"kind": "gpu_lost", "pci": "0000:b3:00.0"},
    'time="2021-05-12T17:31:12Z" level=error msg="Failed to collect metrics with error: Error getting the latest value for fields: '
    'Host engine connection invalid/disconnected"': {"kind": "exporter_disconnected"},
    'time="2021-05-12T17:31:12Z" level=info msg="Not collecting DCP metrics: This request is serviced by a module of DCGM that is '
    'not currently loaded"': {"kind": "exporter_blind"},
}


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_is_its_kind(line):
    assert notices(read(line)) == [ERRORS[line]]


def test_a_server_that_is_told_to_stop_does_not_crash():
    """On SIGTERM, vLLM prints the tracebacks of a dead engine."""
    dead = "(APIServer pid=1) ERROR 07-28 01:00:{:02d} [async_llm.py:1] EngineDeadError"
    stopping = read(
        "(APIServer pid=1) INFO 07-28 01:00:00 [launcher.py:110] Shutting down FastAPI HTTP server.", dead.format(3)
    )
    assert kinds(stopping) == ["stopped"]
    assert kinds(read(dead.format(3))) == ["engine_dead"]


def test_a_signal_that_reaches_every_process_of_vllm_is_no_crash_and_a_dead_worker_is():
    """As `systemctl stop` ends it with requests inside (0.32), and as it ends when its worker is killed."""
    api, core = "(APIServer pid=1) {} 07-28 01:00:00 ", "(EngineCore pid=2) {} 07-28 01:00:00 "
    dead = (
        api.format("ERROR")
        + "[async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    )
    told = (
        core.format("INFO") + "[core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM",
        api.format("INFO") + "[launcher.py:254] [shutdown] API server: shutdown triggered",
        dead,
        "INFO:     Shutting down",
    )
    assert set(kinds(read(*told))) == {"stopped"}
    killed = (
        core.format("ERROR") + "[multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
        dead,
        "INFO:     Shutting down",
        api.format("INFO") + "[core_client.py:770] [shutdown] MPClient: start timeout=0s",
    )
    assert {"process_crashed", "engine_dead"} <= set(kinds(read(*killed)))


def test_what_a_stopped_server_said_last_does_not_stand():
    found = read(
        v1(0, 0.0, 0.0, 3, 0, 10.0),
        "(APIServer pid=1) INFO 07-28 01:00:02 [launcher.py:110] Shutting down FastAPI HTTP server.",
        "(APIServer pid=1) INFO 07-28 01:01:00 [x.py:1] something else",
    )
    assert max(row["at"] for row in rows(found)) <= found.first_at + 2


def test_every_kind_is_described_once_and_readers_know_no_others():
    assert all(len(text) > 10 for text in NOTICES.values())
    assert {notice["kind"] for line in ERRORS for notice in notices(read(line))} <= set(NOTICES)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ERROR 01-02 03:04:05 [multiproc_executor.py:7] WorkerProc failed to start.", "start_failed"),
        ("ERROR 01-02 03:04:05 [pynccl_pipe.py:264] Encountering exception in KV receiving thread", "transfer_failed"),
        ("[2025-01-02 03:04:05 TP0] Unexpected transfer worker error for room 12: broken", "transfer_failed"),
        ("ERROR [1:2] [[Health]] Detected clocks event due to thermal violation in GPU 5. Verify", "clock_held_down"),
        ("ERROR [1:2] [[Health]] Detected clock throttling due to power violation in GPU 0. Verify", "clock_held_down"),
    ],
)
def test_what_workers_transfers_and_health_checks_say(line, kind):
    assert kinds(read(line)) == [kind]


def test_a_health_check_names_the_device_and_the_limit():
    found = notices(read("ERROR [1:2] [[Health]] Detected clocks event due to thermal violation in GPU 5. Verify"))
    assert found[0]["index"] == "5"
    assert found[0]["cause"] == "thermal"


@pytest.mark.parametrize("why", ["GPU is lost.  Reboot the system to recover this GPU", "Unknown Error"])
def test_a_device_that_nvidia_smi_cannot_reach_is_lost(why):
    line = f"Unable to determine the device handle for GPU 0000:0B:00.0: {why}"
    assert notices(read(line)) == [{"kind": "gpu_lost", "pci": "0000:0b:00.0"}]
