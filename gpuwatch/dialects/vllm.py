"""vLLM: V1 names first, names of V0 and of removed releases behind them (checked against 0.3 … 0.33).

Ray sanitises `:` to `_` and adds its own prefix; so does an OpenMetrics answer. Without the label `engine` a page is of
V0 or of an early V1: rank 0. Counters of `request_success` miss requests whose client went away.
"""

from .dialect import Dialect, Facts, Term, add, take

_SUCCESS = ("request_success_total",)

DIALECT = Dialect(
    name="vllm",
    prefixes=("vllm:", "vllm_", "ray_vllm_"),
    detect=("num_requests_running", "num_requests_waiting", "generation_tokens_total"),
    signals={
        "req_running": take("num_requests_running"),
        # V0 could swap a request's KV to the host: it holds none on the device then.
        "req_waiting": add(Term(("num_requests_waiting",)), Term(("num_requests_swapped",), optional=True)),
        "req_waiting_capacity": add(Term(("num_requests_waiting_by_reason",), where={"reason": ("capacity",)})),
        "req_waiting_deferred": add(Term(("num_requests_waiting_by_reason",), where={"reason": ("deferred",)})),
        "req_finished_total": add(Term(_SUCCESS, unless={"finished_reason": ("abort",)})),
        "req_aborted_total": add(Term(_SUCCESS, where={"finished_reason": ("abort",)})),
        "req_rejected_total": take("admission_rejections_total"),
        "req_preempted_total": take("num_preemptions_total"),
        # Several series a rank (one a process) all show the same pool.
        "kv_usage_ratio": take("kv_cache_usage_perc", "gpu_cache_usage_perc", across="max"),
        "prefix_hit_ratio": take("gpu_prefix_cache_hit_rate", across="max"),
        "prefix_query_tokens_total": take("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        "prefix_hit_tokens_total": take("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        "prompt_tokens_total": take("prompt_tokens_total"),
        "generated_tokens_total": take("generation_tokens_total"),
        # One observation per engine iteration: the only counter that moves with the scheduler.
        "steps_total": take("iteration_tokens_total_count"),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        "ttft_seconds": ("time_to_first_token_seconds",),
        "itl_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
        "tpot_seconds": ("request_time_per_output_token_seconds",),
        "e2e_seconds": ("e2e_request_latency_seconds",),
        "queue_seconds": ("request_queue_time_seconds", "time_in_queue_requests"),
        "prefill_seconds": ("request_prefill_time_seconds",),
        "decode_seconds": ("request_decode_time_seconds",),
        "prompt_tokens": ("request_prompt_tokens",),
        "output_tokens": ("request_generation_tokens",),
        "max_tokens_requested": ("request_params_max_tokens",),
        "iteration_tokens": ("iteration_tokens_total",),
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
    inferred={
        "req_arrived_total": "finished + rejected + running + waiting; a fall that lasts is booked as aborted",
    },
    created=("num_preemptions_created", "generation_tokens_created"),
    absent={
        "max_num_seqs": "not on the page; the engine's arguments say it",
        "waiting_fit": "no engine of this kind says what would fit; the step ring does",
        "head_wait_seconds": "ages in flight are not exposed",
        "head_need_blocks": "the head of the queue is not exposed",
        "admission_stop_reason": "not exposed; the step ring says it",
        "kv_used_blocks": "only the ratio is exposed",
        "kv_cached_ratio": "evictable prefixes count as free and are not told apart",
        "kv_reserved_unused_ratio": "nothing is reserved for output tokens",
        "kv_internal_fragmentation_ratio": "tokens in blocks are not exposed",
        "kv_external_fragmentation_ratio": "zero by construction in a paged pool",
        "recomputed_tokens_total": "recomputation is invisible on the page",
        "step_seconds": "steps are not timed on the page; the step ring has them",
        "step_prefill_tokens": "iteration_tokens books a prompt when it is complete, not what a step computed",
        "step_decode_tokens": "see step_prefill_tokens",
        "step_longest_prefill_tokens": "see step_prefill_tokens",
    },
)
