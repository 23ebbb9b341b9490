"""TensorRT-LLM's trtllm-serve: `trtllm_` now, `trtllm:` under an older Dynamo, no prefix until 1.1.

Its Prometheus page is /prometheus/metrics. /metrics is a JSON list that reading empties: it is never polled.
Gauges are refreshed when a request completes, so during long generations they stand still.
"""

from .absences import NO_CAUSES, NO_FRAGMENTATION, NO_LOOP_LAG, NO_LORA, NO_PAIRS, NO_QUEUE_DETAIL, NO_TRANSFER
from .dialect import Dialect, Facts, Page
from .reading import first, of, one, product, ratio, take

_ERRORS = "request_error_total"

DIALECT = Dialect(
    name="trtllm",
    title="TensorRT-LLM",
    prefixes=("trtllm_", "trtllm:", ""),
    detect=(
        "num_requests_running", "num_requests_waiting", "request_success_total", "kv_cache_utilization",
        "e2e_request_latency_seconds_bucket",
    ),
    bare_detect=("e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_count"),
    page=Page(
        path="/prometheus/metrics", port=8000,
        enable="return_perf_metrics: true and enable_iter_perf_stats: true in the YAML",
    ),
    signals={
        "req_running": take("num_requests_running", quality="stale_possible"),
        "req_waiting": take("num_requests_waiting", quality="stale_possible"),
        "req_paused": take("num_paused_requests", quality="stale_possible"),
        "max_num_seqs": first(
            take("max_batch_size_runtime", "max_batch_size_static", across="max"),
            take("max_num_active_requests", across="max"),
        ),
        "req_finished_total": first(take("request_success_total"), take("num_requests_completed_total")),
        "req_failed_total": take(_ERRORS, zero_with=("num_requests_completed_total",)),
        "kv_usage_ratio": first(
            take("kv_cache_utilization", across="max", quality="stale_possible"),
            ratio(one("kv_cache_used_blocks"), one("kv_cache_max_blocks"), quality="stale_possible"),
        ),
        "kv_capacity_tokens": product(one("kv_cache_max_blocks"), one("kv_cache_tokens_per_block")),
        "kv_block_tokens": take("kv_cache_tokens_per_block", across="max"),
        "kv_used_blocks": take("kv_cache_used_blocks", across="max", quality="stale_possible"),
        "kv_total_blocks": take("kv_cache_max_blocks", across="max"),
        "kv_host_usage_ratio": take("kv_cache_host_utilization", across="max", quality="stale_possible"),
        "prefix_hit_ratio": take("kv_cache_hit_rate", across="max", quality="lifetime"),
        "prefix_query_tokens_total": take("prompt_tokens_total", quality="at_finish"),
        "prefix_hit_tokens_total": take("prompt_cached_tokens_total", quality="at_finish"),
        "prompt_tokens_total": take("prompt_tokens_total", quality="at_finish"),
        "generated_tokens_total": take("generation_tokens_total", quality="at_finish"),
        "step_seconds": take("iteration_latency_seconds", across="max", quality="stale_possible"),
        "step_prefill_tokens": take("total_context_tokens", across="max", quality="stale_possible"),
        "spec_draft_tokens_total": take("spec_decode_num_draft_tokens_total", quality="at_finish"),
        "spec_accepted_tokens_total": take("spec_decode_num_accepted_tokens_total", quality="at_finish"),
        "spec_accept_length": take("spec_decode_acceptance_length", "acceptance_length", across="max"),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        "ttft_seconds": of("time_to_first_token_seconds"),
        "tpot_seconds": of("time_per_output_token_seconds"),
        "e2e_seconds": of("e2e_request_latency_seconds"),
        "queue_seconds": of("request_queue_time_seconds"),
        "prefill_seconds": of("request_prefill_time_seconds"),
        "decode_seconds": of("request_decode_time_seconds"),
    },
    facts=(
        Facts(("model_config_info", "parallel_config_info", "speculative_config_info", "kv_cache_config_info")),
    ),
    inferred={
        "req_arrived_total": "finished + failed + running + waiting; a fall that lasts is booked as aborted",
    },
    also_ended=("req_failed_total",),
    rank_labels=("rank",),
    copies=("pid",),
    created=("request_success_created",),
    notes=(
        ("Gauges are refreshed when a request completes: during long generations they stand still, and short pauses are "
        "never seen."),
        "Without `enable_iter_perf_stats` there is no gauge of running or waiting requests.",
        "Bounds of queue, decode and whole latency begin at 0.3 s.",
    ),
    absent={
        **NO_CAUSES,
        **NO_LOOP_LAG,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        **NO_PAIRS,
        **NO_TRANSFER,
        **NO_LORA,
        "req_aborted_total": "requests that were cancelled are not counted",
        "req_rejected_total": "part of request_error_total, by HTTP code",
        "req_corrupted_total": "logits are not checked for NaN",
        "req_preempted_total": "pauses are in the scheduler's log only",
        "preempted_tokens_total": "pauses are in the scheduler's log only",
        "recomputed_tokens_total": "pauses are in the scheduler's log only",
        "kv_cached_ratio": "reusable blocks count as free and are not told apart",
        "kv_evicted_tokens_total": "evictions are not counted in tokens",
        "output_reserve_ratio": "GUARANTEED_NO_EVICT reserves all of max_tokens; no metric says how much",
        "steps_total": "no counter of iterations: only gauges of the last one",
        "step_decode_tokens": "only the mean of decoded tokens per iteration",
        "step_longest_prefill_tokens": "single prefill chunks are not on the page",
        "itl_seconds": "not exposed; tpot_seconds is the mean of each request",
        "spec_drafts_total": "drafts are not counted, their tokens are",
        "spec_accept_ratio": "the two counters say it over any window",
        "engine_asleep": "not exposed",
        "prompt_tokens": "only cached tokens per request are a histogram",
        "output_tokens": "only cached tokens per request are a histogram",
        "max_tokens_requested": "max_tokens of requests is not exposed",
        "iteration_tokens": "iterations are gauges of the last one",
    },
)  # fmt: skip
