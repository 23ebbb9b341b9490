"""vLLM: V1 names first, names of V0 and of removed releases behind them (checked against 0.3 … 0.33).

Ray sanitises `:` to `_` and adds its own prefix and replica labels; so does an OpenMetrics answer with the colon.
Without the label `engine` a page is of V0 or of an early V1: rank 0. Counters of `request_success` miss requests whose
client went away.
"""

from .absences import NO_FRAGMENTATION, NO_LOOP_LAG, NO_PAIRS, NO_QUEUE_DETAIL, NO_STEPS
from .dialect import Dialect, Facts, Page
from .reading import Roster, Term, add, of, one, take

_SUCCESS = ("request_success_total",)

DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    prefixes=("vllm:", "vllm_", "ray_vllm_"),
    detect=("num_requests_running", "num_requests_waiting", "generation_tokens_total"),
    page=Page(
        path="/metrics", port=8000, enable="on unless started with --disable-log-stats",
    ),
    signals={
        "req_running": take("num_requests_running"),
        # V0 could swap a request's KV to the host: it holds none on the device then.
        "req_waiting": add(one("num_requests_waiting"), one("num_requests_swapped", optional=True)),
        "req_waiting_capacity": take("num_requests_waiting_by_reason", reason="capacity"),
        "req_waiting_deferred": take("num_requests_waiting_by_reason", reason="deferred"),
        "req_finished_total": add(Term(_SUCCESS, unless={"finished_reason": ("abort",)})),
        "req_aborted_total": add(Term(_SUCCESS, where={"finished_reason": ("abort",)})),
        "req_failed_total": add(Term(_SUCCESS, where={"finished_reason": ("error",)})),
        "req_rejected_total": take("admission_rejections_total"),
        "req_corrupted_total": take("corrupted_requests_total"),
        "req_preempted_total": take("num_preemptions_total"),
        # Several series a rank (one a process) all show the same pool.
        "kv_usage_ratio": take("kv_cache_usage_perc", "gpu_cache_usage_perc", across="max"),
        "kv_host_usage_ratio": take("cpu_cache_usage_perc", across="max"),
        "prefix_hit_ratio": take("gpu_prefix_cache_hit_rate", across="max", quality="lifetime"),
        "prefix_query_tokens_total": take("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        "prefix_hit_tokens_total": take("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        "kv_transfer_bytes_total": take("nixl_bytes_transferred_sum"),
        "kv_transfer_failed_total": take("nixl_num_failed_transfers_total"),
        "prompt_tokens_total": take("prompt_tokens_total"),
        "generated_tokens_total": take("generation_tokens_total"),
        # One observation per engine iteration: the only counter that moves with the scheduler.
        "steps_total": take("iteration_tokens_total_count"),
        "spec_drafts_total": take("spec_decode_num_drafts_total"),
        "spec_draft_tokens_total": take("spec_decode_num_draft_tokens_total"),
        "spec_accepted_tokens_total": take("spec_decode_num_accepted_tokens_total"),
        "spec_accept_ratio": take("spec_decode_draft_acceptance_rate", across="max", quality="lifetime"),
        "engine_asleep": take("engine_sleep_state", sleep_state=("weights_offloaded", "discard_all"), across="max"),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        "ttft_seconds": of("time_to_first_token_seconds"),
        "itl_seconds": of("inter_token_latency_seconds", "time_per_output_token_seconds"),
        "tpot_seconds": of("request_time_per_output_token_seconds"),
        "e2e_seconds": of("e2e_request_latency_seconds"),
        "queue_seconds": of("request_queue_time_seconds", "time_in_queue_requests"),
        "prefill_seconds": of("request_prefill_time_seconds"),
        "decode_seconds": of("request_decode_time_seconds"),
        "prompt_tokens": of("request_prompt_tokens"),
        "output_tokens": of("request_generation_tokens"),
        "max_tokens_requested": of("request_params_max_tokens", "request_max_num_generation_tokens"),
        "iteration_tokens": of("iteration_tokens_total"),
        "kv_transfer_seconds": of("nixl_xfer_time_seconds"),
    },
    facts=(
        Facts(
            ("cache_config_info",),
            {
                "kv_cache_size_tokens": "kv_capacity_tokens",
                "block_size": "kv_block_tokens",
                "num_gpu_blocks": "kv_total_blocks_all_ranks",  # summed at the handshake, repeated under every rank
                "cache_dtype": "arg_cache_dtype",
                "enable_prefix_caching": "arg_enable_prefix_caching",
                "gpu_memory_utilization": "arg_gpu_memory_utilization",
                "kv_cache_max_concurrency": "kv_max_concurrency",
            },
        ),
    ),
    from_facts=("kv_capacity_tokens", "kv_block_tokens", "kv_total_blocks"),
    rosters=(
        # Adapters of running requests are listed as waiting, too: what only waits is what is not running.
        Roster(
            ("lora_requests_info",),
            {"lora_running_adapters": "running_lora_adapters", "lora_waiting_adapters": "waiting_lora_adapters"},
            {"lora_slots": "max_lora"},
        ),
    ),
    inferred={
        "req_arrived_total": "finished + rejected + running + waiting; a fall that lasts is booked as aborted",
    },
    rank_labels=("engine", "ReplicaId", "WorkerId"),
    copies=("pid",),
    created=("num_preemptions_created", "generation_tokens_created"),
    notes=(
        ("The filtered lane works under `/metrics/` only (with the slash); with more than one API server it answers an "
        "empty page and whole pages are read."),
        ("Bounds of queue, prefill, decode and whole latency begin at 0.3 s, those of the inter-token latency at 10 ms: "
        "below, only means are used."),
        "`num_preemptions_total` counts with the victim's next output, seconds late. Recomputation is not on the page.",
        ("`prompt_tokens_total` books a prompt when its prefill is complete; `iteration_tokens` books it whole in that "
        "step and is no step size."),
    ),
    absent={
        **NO_STEPS,
        **NO_LOOP_LAG,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        **NO_PAIRS,
        "req_waiting_grammar": "part of those that are deferred",
        "req_waiting_bootstrap": "part of those that are deferred",
        "req_paused": "a sleeping engine shows in engine_asleep",
        "max_num_seqs": "not on the page; the engine's arguments say it",
        "kv_used_blocks": "only the ratio is exposed",
        "kv_cached_ratio": "evictable prefixes count as free and are not told apart",
        "kv_reserved_unused_ratio": "nothing is reserved for output tokens",
        "kv_evicted_tokens_total": "evictions are sampled times (opt-in), not counts",
        "kv_transfer_last_seconds": "transfers are a histogram here",
        "kv_transfer_bytes_per_second": "bytes and seconds of transfers say it",
        "output_reserve_ratio": "nothing is reserved for output tokens",
        "recomputed_tokens_total": "recomputation is invisible on the page",
        "preempted_tokens_total": "victims are counted, their tokens are not",
        "lora_slots_used": "residency of adapters is not exposed",
        "spec_accept_length": "1 + accepted tokens ÷ drafts says it over any window",
        "step_prefill_tokens": "iteration_tokens books a prompt when it is complete, not what a step computed",
    },
)  # fmt: skip
