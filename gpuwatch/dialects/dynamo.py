"""NVIDIA Dynamo's front end: what its clients see, summed over the workers behind it; models are ranks.

A worker's system page repeats the names of the engine inside it (`vllm:`, `sglang:`, `trtllm_`) and is that engine: this
dialect yields to it. `DYN_METRICS_PREFIX` renames everything, so two names under one prefix identify it, too.
"""

from .absences import (
    NO_CAUSES,
    NO_FRAGMENTATION,
    NO_LORA,
    NO_PAIRS,
    NO_QUEUE_DETAIL,
    NO_SPECULATION,
    NO_STEPS,
    NO_TRANSFER,
)
from .dialect import Dialect, Page
from .reading import first, of, one, product, take

DIALECT = Dialect(
    name="dynamo",
    title="Dynamo front end",
    prefixes=("dynamo_frontend_", "dynamo_component_", "nv_llm_http_service_"),
    detect=("requests_total", "requests_started_total", "inflight_requests", "active_requests", "total_blocks"),
    any_prefix=("input_sequence_tokens_count", "output_sequence_tokens_count"),
    yields=True,
    page=Page(
        path="/metrics",
        port=8000,
        enable="on; a worker's page is on DYN_SYSTEM_PORT",
        price=1.0,
    ),
    signals={
        "req_running": take("active_requests", "inflight_requests"),
        "req_waiting": first(
            take("stage_requests", stage=("preprocess", "route", "dispatch")), take("queued_requests")
        ),
        "max_num_seqs": take("model_max_num_seqs", across="max"),
        "req_arrived_total": take("requests_started_total"),
        "req_finished_total": first(
            take("requests_total", status="success"), take("dynamo_component_requests_total", bare=True)
        ),
        "req_failed_total": take("requests_total", status="error"),
        "req_aborted_total": take("model_cancellation_total"),
        "req_rejected_total": take("model_rejection_total"),
        "kv_usage_ratio": first(
            take("gpu_cache_usage_percent", "kvstats_gpu_cache_usage_percent", across="max"),
            take("dynamo_component_gpu_cache_usage_percent", bare=True, across="max"),
        ),
        "kv_capacity_tokens": product(one("model_total_kv_blocks"), one("model_kv_cache_block_size")),
        "kv_block_tokens": take("model_kv_cache_block_size", across="max"),
        "kv_used_blocks": take("worker_active_decode_blocks"),
        "kv_total_blocks": take("model_total_kv_blocks", "total_blocks", across="max"),
        "prefix_hit_ratio": take("kv_cache_hit_rate", across="max", quality="lifetime"),
        "prefix_query_tokens_total": take("input_sequence_tokens_sum", quality="at_finish"),
        "prefix_hit_tokens_total": take("cached_tokens_sum", quality="at_finish"),
        "prompt_tokens_total": take("input_sequence_tokens_sum", quality="at_finish"),
        "generated_tokens_total": first(
            take("output_tokens_total"), take("output_sequence_tokens_sum", quality="at_finish")
        ),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        "ttft_seconds": of("time_to_first_token_seconds"),
        "itl_seconds": of("inter_token_latency_seconds"),
        "e2e_seconds": of("request_duration_seconds"),
        "prompt_tokens": of("input_sequence_tokens"),
        "output_tokens": of("output_sequence_tokens"),
        "event_loop_lag_seconds": of("event_loop_delay_seconds"),
    },
    facts=(),
    rank_labels=("model",),
    model_labels=("model",),
    notes=(
        "Running is what the front end has open: requests that wait inside an engine are among them.",
        "`gpu_cache_usage_percent` is a fraction of 1 despite its name; anything above is dropped and counted.",
        "The engine inside a worker is better watched on the worker's own page.",
    ),
    absent={
        **NO_STEPS,
        **NO_CAUSES,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        **NO_PAIRS,
        **NO_TRANSFER,
        **NO_LORA,
        **NO_SPECULATION,
        "req_paused": "the engines' own",
        "req_corrupted_total": "the engines' own, not the front end's",
        "req_preempted_total": "the engines' own, not the front end's",
        "preempted_tokens_total": "the engines' own, not the front end's",
        "recomputed_tokens_total": "the engines' own, not the front end's",
        "kv_cached_ratio": "the engines' own, not the front end's",
        "kv_host_usage_ratio": "the block manager's page has it, not the front end's",
        "kv_evicted_tokens_total": "the engines' own, not the front end's",
        "output_reserve_ratio": "the engines' own, not the front end's",
        "steps_total": "the engines' own, not the front end's",
        "engine_asleep": "the engines' own, not the front end's",
        "tpot_seconds": "inter-token latency only",
        "queue_seconds": "stages of the front end are timed, the engines' queues are not",
        "prefill_seconds": "the engines' own, not the front end's",
        "decode_seconds": "the engines' own, not the front end's",
        "max_tokens_requested": "max_tokens of requests is not exposed",
        "iteration_tokens": "the engines' own, not the front end's",
    },
)
