"""Every signal that gpuwatch knows: the only authority on names, units, kinds and bounds.

Dialects map engines' names onto these, rules and dashboards speak these alone, and `/metrics` exports them as
`gpuwatch_<name>`. Base units; ratios lie in 0–1. Meanings follow the normative vocabulary of the engine reference:
`kv_usage_ratio` counts evictable prefix blocks as free, `req_waiting` includes preempted requests.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]


class Signal(msgspec.Struct, frozen=True):
    """One catalogue row. `low` and `high` bound a possible value, inclusive."""

    name: str
    kind: Kind
    unit: str
    help: str
    low: float = 0.0
    high: float = math.inf


_RATIO = 1.0


def _g(name: str, unit: str, help: str, high: float = math.inf, low: float = 0.0) -> Signal:
    return Signal(name, "gauge", unit, help, low, high)


def _c(name: str, unit: str, help: str) -> Signal:
    return Signal(name, "counter", unit, help)


def _h(name: str, unit: str, help: str) -> Signal:
    return Signal(name, "histogram", unit, help)


_SIGNALS = (
    # demand and admission
    _g("req_running", "requests", "Requests that hold KV in the running batch"),
    _g("req_waiting", "requests", "Requests accepted and not holding KV, preempted ones included"),
    _g("req_waiting_capacity", "requests", "Waiting for KV or a batch slot"),
    _g("req_waiting_deferred", "requests", "Waiting for an adapter, a grammar or remote KV"),
    _g("req_waiting_grammar", "requests", "Waiting for a grammar to be compiled"),
    _g("req_waiting_bootstrap", "requests", "Prefills waiting for the decode side to take part"),
    _g("req_waiting_prealloc", "requests", "Transferred requests waiting for KV memory on the decode side"),
    _g("req_transferring", "requests", "Requests whose KV is on its way from prefill to decode"),
    _g("req_paused", "requests", "Requests that the engine has set aside"),
    _g("max_num_seqs", "requests", "Configured limit of running requests"),
    _g("waiting_fit", "requests", "Waiting requests that would each fit in the blocks that are free now"),
    _g("head_wait_seconds", "seconds", "How long the head of the queue has waited"),
    _g("head_need_blocks", "blocks", "Blocks that the head of the queue needs"),
    _g("admission_stop_reason", "code", "Why admission ended in the last step (docs/ring.md)", high=16),
    _c("req_arrived_total", "requests", "Requests received by the engine"),
    _c("req_finished_total", "requests", "Requests that ended with an answer"),
    _c("req_aborted_total", "requests", "Requests whose client went away"),
    _c("req_rejected_total", "requests", "Requests refused at admission"),
    _c("req_failed_total", "requests", "Requests that ended with an error"),
    _c("req_corrupted_total", "requests", "Requests whose logits held NaN"),
    _c("req_preempted_total", "events", "Running requests that lost their KV"),
    # KV cache
    _g("kv_usage_ratio", "ratio", "Blocks not available to a new request ÷ all; evictable prefixes are free", _RATIO),
    _g("kv_capacity_tokens", "tokens", "Size of the KV pool"),
    _g("kv_block_tokens", "tokens", "Tokens in a KV block"),
    _g("kv_used_blocks", "blocks", "Blocks held by requests"),
    _g("kv_total_blocks", "blocks", "Blocks in the pool"),
    _g("kv_cached_ratio", "ratio", "Free blocks that hold a reusable prefix ÷ all blocks", _RATIO),
    _g("kv_reserved_unused_ratio", "ratio", "Blocks promised and not written ÷ all blocks", _RATIO),
    _g("kv_internal_fragmentation_ratio", "ratio", "Token slots in held blocks that hold no token", _RATIO),
    _g("kv_external_fragmentation_ratio", "ratio", "1 − largest free run ÷ free, contiguous pools only", _RATIO),
    _g("kv_host_usage_ratio", "ratio", "Host tier of the KV cache in use ÷ all of it", _RATIO),
    _c("kv_evicted_tokens_total", "tokens", "Cached tokens thrown out of the device's pool"),
    _h("kv_transfer_seconds", "seconds", "Duration of a KV transfer between engines"),
    _g("kv_transfer_last_seconds", "seconds", "Duration of the last KV transfer"),
    _g("kv_transfer_bytes_per_second", "bytes/second", "Speed of the last KV transfer"),
    _c("kv_transfer_bytes_total", "bytes", "KV moved between engines"),
    _c("kv_transfer_failed_total", "events", "KV transfers that failed"),
    _g("output_reserve_ratio", "ratio", "Share of max_tokens that admission sets aside for each request", _RATIO),
    _g("prefix_hit_ratio", "ratio", "Prompt tokens found in the prefix cache ÷ looked up", _RATIO),
    _c("prefix_query_tokens_total", "tokens", "Prompt tokens looked up in the prefix cache"),
    _c("prefix_hit_tokens_total", "tokens", "Prompt tokens found in the prefix cache"),
    # tokens
    _c("prompt_tokens_total", "tokens", "Prompt tokens accepted or prefilled, as the engine books them"),
    _c("generated_tokens_total", "tokens", "Output tokens"),
    _c("recomputed_tokens_total", "tokens", "Tokens computed again after a preemption"),
    _c("preempted_tokens_total", "tokens", "Tokens whose KV was thrown away by preemptions"),
    # adapters and speculation
    _g("lora_running_adapters", "adapters", "Adapters that running requests use"),
    _g("lora_waiting_adapters", "adapters", "Adapters that only waiting requests want"),
    _g("lora_slots", "adapters", "Adapters that fit at once"),
    _g("lora_slots_used", "adapters", "Adapter slots in use"),
    _c("spec_drafts_total", "drafts", "Speculative drafts verified"),
    _c("spec_draft_tokens_total", "tokens", "Tokens drafted"),
    _c("spec_accepted_tokens_total", "tokens", "Drafted tokens that were accepted"),
    _g("spec_accept_length", "tokens", "Tokens gained by a verification, the bonus token included"),
    _g("spec_accept_ratio", "ratio", "Drafted tokens accepted ÷ drafted, as the engine averages it", _RATIO),
    _g("engine_asleep", "bool", "1 while the engine sleeps: weights offloaded or dropped", _RATIO),
    # tokens per second, as logs say them
    _g("prompt_tokens_per_second", "tokens/second", "Prompt tokens per second between two lines of the engine's log"),
    _g(
        "generated_tokens_per_second", "tokens/second", "Output tokens per second between two lines of the engine's log"
    ),
    # steps
    _g("step_seconds", "seconds", "Duration of a scheduler step"),
    _g("step_prefill_tokens", "tokens", "Prefill tokens in a step"),
    _g("step_decode_tokens", "tokens", "Decode tokens in a step"),
    _g("step_longest_prefill_tokens", "tokens", "Largest prefill chunk in a step"),
    _c("steps_total", "steps", "Scheduler steps since the start"),
    # latency
    _h("ttft_seconds", "seconds", "Time to first token"),
    _h("itl_seconds", "seconds", "Inter-token latency, one observation per engine output"),
    _h("tpot_seconds", "seconds", "Mean time per output token of a request"),
    _h("e2e_seconds", "seconds", "Whole latency of a request"),
    _h("queue_seconds", "seconds", "First wait of a request"),
    _h("prefill_seconds", "seconds", "First scheduled to first token"),
    _h("decode_seconds", "seconds", "First token to last token"),
    _h("event_loop_lag_seconds", "seconds", "How late an alarm on the front end's event loop rings"),
    _h("prompt_tokens", "tokens", "Prompt length of finished requests"),
    _h("output_tokens", "tokens", "Output length of finished requests"),
    _h("max_tokens_requested", "tokens", "max_tokens as asked by clients"),
    _h("iteration_tokens", "tokens", "Tokens booked per engine iteration"),
    # derived by the agent, once a second
    _g("arrival_rate_per_second", "1/second", "Requests received per second, last 60 s"),
    _g("completion_rate_per_second", "1/second", "Requests finished per second, last 60 s"),
    _g("ttft_p50_seconds", "seconds", "Median time to first token, last 60 s"),
    _g("ttft_p95_seconds", "seconds", "P95 time to first token, last 60 s, requests that still wait included"),
    _g("e2e_p95_seconds", "seconds", "P95 whole latency of finished requests, last 60 s"),
    _g("itl_mean_seconds", "seconds", "Mean inter-token latency, last 60 s"),
    _g("good_ratio", "ratio", "Share of requests within the TTFT objective, last 60 s", _RATIO),
    _g("kv_long_share_ratio", "ratio", "KV held by requests of at least 8 × the median length ÷ KV held", _RATIO),
    _g("queue_share_ratio", "ratio", "Share of TTFT that was queueing, last 60 s", _RATIO),
    _g("prefill_share_ratio", "ratio", "Share of TTFT that was prefill, last 60 s", _RATIO),
    _g("front_share_ratio", "ratio", "Share of TTFT before the queue (receive, preprocess), last 60 s", _RATIO),
    # GPU
    _g("gpu_util_ratio", "ratio", "Share of time with at least one kernel resident; no evidence of health", _RATIO),
    _g("gpu_gr_engine_active_ratio", "ratio", "Share of time the compute engine was busy", _RATIO),
    _g("gpu_sm_active_ratio", "ratio", "Share of time an SM had a warp, mean over SMs", _RATIO),
    _g("gpu_sm_occupancy_ratio", "ratio", "Resident warps ÷ maximum warps", _RATIO),
    _g("gpu_tensor_active_ratio", "ratio", "Share of cycles with the tensor pipe active", _RATIO),
    _g("gpu_dram_active_ratio", "ratio", "Share of cycles the memory interface moved data", _RATIO),
    _g("gpu_dram_bytes_per_second", "bytes/second", "HBM traffic"),
    _g("gpu_memory_used_bytes", "bytes", "Device memory in use"),
    _g("gpu_memory_total_bytes", "bytes", "Device memory"),
    _g("gpu_sm_clock_hertz", "hertz", "SM clock"),
    _g("gpu_sm_clock_max_hertz", "hertz", "Highest SM clock"),
    _g("gpu_power_watts", "watts", "Board power"),
    _g("gpu_power_limit_watts", "watts", "Enforced power limit"),
    _g("gpu_temperature_celsius", "celsius", "GPU temperature", high=200.0, low=-50.0),
    _g("gpu_throttled_ratio", "ratio", "Share of time under a hardware or thermal slowdown", _RATIO),
    _g("gpu_throttled_power_ratio", "ratio", "Share of time held down by the power cap; common and benign", _RATIO),
    _g("gpu_throttled_thermal_ratio", "ratio", "Share of time under a thermal slowdown, at least", _RATIO),
    _g("gpu_throttled_brake_ratio", "ratio", "Share of time under a power brake from outside", _RATIO),
    _g("gpu_throttled_sync_ratio", "ratio", "Share of time held down to the slowest of a synchronised group", _RATIO),
    _c("gpu_energy_joules_total", "joules", "Energy since driver load"),
    _c("gpu_xid_total", "events", "XID events seen by the agent"),
    _g("gpu_xid_last_code", "code", "Last XID code; sticky, so never a count", high=1e6),
    _g("gpu_up", "bool", "1 while the device answers its driver", _RATIO),
    _g("gpu_memory_busy_ratio", "ratio", "Share of time memory was read or written; no share of bandwidth", _RATIO),
    _g("gpu_memory_reserved_bytes", "bytes", "Device memory that driver and firmware keep"),
    _g("gpu_memory_clock_hertz", "hertz", "Memory clock"),
    _g("gpu_memory_temperature_celsius", "celsius", "Memory temperature", high=200.0, low=-50.0),
    _g("gpu_bar1_used_bytes", "bytes", "Window of device memory mapped into the host's addresses"),
    _g("gpu_processes", "processes", "Compute processes on the device"),
    _c("gpu_ecc_corrected_total", "errors", "Memory errors corrected since driver load"),
    _c("gpu_ecc_uncorrected_total", "errors", "Memory errors beyond repair since driver load"),
    _g("gpu_remapped_rows_corrected", "rows", "Memory rows replaced for corrected errors, ever"),
    _g("gpu_remapped_rows_uncorrected", "rows", "Memory rows replaced for uncorrectable errors, ever"),
    _g("gpu_remap_pending", "bool", "1 while a row or page waits for a reset to be replaced", _RATIO),
    _g("gpu_remap_failed", "bool", "1 when a row could not be replaced: the device is to be exchanged", _RATIO),
    _g(
        "gpu_recovery_action",
        "code",
        "What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain, 4 both",
        high=100,
    ),
    _g("gpu_pcie_tx_bytes_per_second", "bytes/second", "PCIe traffic from the device, headers included"),
    _g("gpu_pcie_rx_bytes_per_second", "bytes/second", "PCIe traffic to the device, headers included"),
    _c("gpu_pcie_replay_total", "events", "PCIe packets that had to be sent again"),
    _g("gpu_pcie_link_generation", "generation", "PCIe generation in use; falls when idle", high=100),
    _g("gpu_pcie_link_width", "lanes", "PCIe lanes in use", high=1024),
    _g("gpu_nvlink_tx_bytes_per_second", "bytes/second", "Traffic to peer devices (NVLink, XGMI, Xe Link)"),
    _g("gpu_nvlink_rx_bytes_per_second", "bytes/second", "Traffic from peer devices (NVLink, XGMI, Xe Link)"),
    # the machine
    _g("host_cpu_ratio", "ratio", "CPU in use ÷ all CPUs", _RATIO),
    _g("host_cpu_steal_ratio", "ratio", "CPU that the hypervisor gave to others ÷ all CPUs", _RATIO),
    _g("host_cpu_iowait_ratio", "ratio", "CPU that idled while a task waited for a disk ÷ all CPUs", _RATIO),
    _g("host_load_ratio", "ratio", "Runnable tasks (1 min) ÷ CPUs", high=1e6),
    _g("host_runnable_ratio", "ratio", "Tasks that run or could run at this moment ÷ CPUs", high=1e6),
    _g("host_cpu_pressure_ratio", "ratio", "Share of time in which some task waited for a CPU", _RATIO),
    _g("host_memory_pressure_ratio", "ratio", "Share of time in which some task waited for memory", _RATIO),
    _g("host_memory_stalled_ratio", "ratio", "Share of time in which all tasks waited for memory", _RATIO),
    _g("host_io_pressure_ratio", "ratio", "Share of time in which some task waited for a disk", _RATIO),
    _g("host_io_stalled_ratio", "ratio", "Share of time in which all tasks waited for a disk", _RATIO),
    _g("host_memory_used_ratio", "ratio", "Memory in use ÷ all", _RATIO),
    _g("host_memory_available_bytes", "bytes", "Memory that can be had without swapping"),
    _g("host_swap_used_bytes", "bytes", "Swap in use"),
    _g("host_swap_bytes_per_second", "bytes/second", "Traffic to and from swap"),
    _g("host_major_faults_per_second", "1/second", "Pages that had to be read from a disk before a task could go on"),
    _g("host_disk_busy_ratio", "ratio", "Share of time in which the busiest disk worked", _RATIO),
    _g("host_disk_wait_seconds", "seconds", "Mean time of an operation, of the disk where it is longest"),
    _g("host_disk_bytes_per_second", "bytes/second", "Read from and written to disks"),
    _g("host_state_free_bytes", "bytes", "Room for the agent's state"),
    _g("host_net_retransmit_ratio", "ratio", "TCP segments sent again ÷ sent", _RATIO),
    _g("host_net_dropped_per_second", "1/second", "Packets dropped by network devices"),
    _g("host_net_rx_bytes_per_second", "bytes/second", "Received by network devices, loopback left out"),
    _g("host_net_tx_bytes_per_second", "bytes/second", "Sent by network devices, loopback left out"),
    # the engine's container
    _g("cgroup_cpu_ratio", "ratio", "CPU of the engine's container, in cores", high=4096),
    _g("cgroup_cpu_limit_ratio", "ratio", "CPU quota of the engine's container, in cores", high=4096),
    _g("cgroup_cpu_throttled_ratio", "ratio", "Throttled periods ÷ periods", _RATIO),
    _g(
        "cgroup_cpu_held_ratio",
        "ratio",
        "Time in which the quota held run queues back ÷ time, over all CPUs",
        high=4096,
    ),
    _g(
        "cgroup_cpu_pressure_ratio",
        "ratio",
        "Share of time in which some task of the container waited for a CPU",
        _RATIO,
    ),
    _g("cgroup_memory_bytes", "bytes", "Memory of the engine's container, file cache included"),
    _g("cgroup_memory_limit_bytes", "bytes", "Memory at which the container's processes are killed"),
    _g("cgroup_memory_high_bytes", "bytes", "Memory at which the container is slowed down to give some back"),
    _g("cgroup_memory_anon_bytes", "bytes", "Memory of the container that no file backs"),
    _g("cgroup_memory_file_bytes", "bytes", "File cache of the container"),
    _g("cgroup_memory_pressure_ratio", "ratio", "Share of time in which some of its tasks waited for memory", _RATIO),
    _g("cgroup_memory_stalled_ratio", "ratio", "Share of time in which all of its tasks waited for memory", _RATIO),
    _g("cgroup_io_pressure_ratio", "ratio", "Share of time in which some of its tasks waited for a disk", _RATIO),
    _g("cgroup_io_stalled_ratio", "ratio", "Share of time in which all of its tasks waited for a disk", _RATIO),
    _c("cgroup_memory_high_total", "events", "Times that the container was slowed down at its high mark"),
    # the engine's processes
    _g("process_cpu_ratio", "ratio", "CPU of the engine's busiest process, in cores", high=4096),
    _g("process_cpu_all_ratio", "ratio", "CPU of all the engine's processes, in cores", high=4096),
    _g("process_cpu_system_ratio", "ratio", "Their CPU spent in the kernel ÷ all of it; spinning shows here", _RATIO),
    _g("process_front_cpu_ratio", "ratio", "CPU of the front end's main thread, its event loop, in cores", high=16),
    _g("process_thread_cpu_ratio", "ratio", "CPU of the engine's busiest thread, in cores", high=16),
    _g(
        "process_run_wait_ratio",
        "ratio",
        "Share of time a main thread could run and had no CPU, the worst of them",
        _RATIO,
    ),
    _g("process_switches_voluntary_per_second", "1/second", "Times that main threads gave the CPU up to wait"),
    _g("process_switches_involuntary_per_second", "1/second", "Times that the CPU was taken from main threads"),
    _g("process_major_faults_per_second", "1/second", "Pages that the engine's processes waited for a disk for"),
    _g("process_memory_bytes", "bytes", "Resident memory of the engine's processes"),
    _g("process_memory_slope_bytes_per_second", "bytes/second", "Its trend over up to six hours", low=-math.inf),
    _g("process_threads", "threads", "Threads of the engine's processes"),
    _g("process_open_files", "files", "Open descriptors of the process that has most"),
    _g("process_open_files_ratio", "ratio", "Open descriptors ÷ allowed, the process nearest to its limit", _RATIO),
    _g("process_start_seconds", "seconds", "Unix time at which the engine's process started"),
    # the agent's own looking
    _g("scrape_seconds", "seconds", "How long one look at the engine took"),
    _g("scrape_up", "bool", "1 while the engine's page answers", _RATIO),
)

CATALOG: dict[str, Signal] = {s.name: s for s in _SIGNALS}
"""Signal by name."""

STEP_SIGNALS: dict[str, str] = {
    "running": "req_running",
    "waiting": "req_waiting",
    "waiting_capacity": "req_waiting_capacity",
    "waiting_deferred": "req_waiting_deferred",
    "waiting_fit": "waiting_fit",
    "head_wait_seconds": "head_wait_seconds",
    "head_need_blocks": "head_need_blocks",
    "stop_reason": "admission_stop_reason",
    "prefill_tokens": "step_prefill_tokens",
    "decode_tokens": "step_decode_tokens",
    "longest_prefill_tokens": "step_longest_prefill_tokens",
    "kv_used_blocks": "kv_used_blocks",
    "kv_total_blocks": "kv_total_blocks",
    "kv_usage_ratio": "kv_usage_ratio",
    "prefix_query_tokens_total": "prefix_query_tokens_total",
    "prefix_hit_tokens_total": "prefix_hit_tokens_total",
    "step": "steps_total",
    "arrived_total": "req_arrived_total",
    "finished_total": "req_finished_total",
    "aborted_total": "req_aborted_total",
    "rejected_total": "req_rejected_total",
    "preempted_total": "req_preempted_total",
    "prompt_tokens_total": "prompt_tokens_total",
    "generated_tokens_total": "generated_tokens_total",
    "recomputed_tokens_total": "recomputed_tokens_total",
}
"""Field of a step record (docs/ring.md) → signal.

The reader of the ring adds what it derives: step_seconds (ended_at − begun_at), kv_usage_ratio (used ÷ total, unless told),
kv_cached_ratio, kv_reserved_unused_ratio (reserved ÷ total) and kv_internal_fragmentation_ratio
(slots_unused ÷ (used × block_tokens)). Each row of such a Frame is stamped with the step's `ended_at`.
"""


LARGEST = 1e15
"""Beyond this nothing is counted, timed or measured here: 31 million years, a petabyte of KV."""


def check_value(name: str, value: float) -> bool:
    """True when `value` is possible for the signal (NaN is possible: not known). KeyError for an unknown name."""
    signal = CATALOG[name]
    return math.isnan(value) or signal.low <= value <= signal.high
