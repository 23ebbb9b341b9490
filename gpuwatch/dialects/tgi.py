"""Hugging Face TGI v3: one router, no labels for model or rank, histograms of successful requests only."""

from .absences import (
    NO_CAUSES,
    NO_FRAGMENTATION,
    NO_LOOP_LAG,
    NO_LORA,
    NO_PAIRS,
    NO_QUEUE_DETAIL,
    NO_SPECULATION,
    NO_STEPS,
    NO_TRANSFER,
)  # fmt: skip
from .dialect import Dialect, Page
from .reading import of, one, ratio, take

DIALECT = Dialect(
    name="tgi",
    title="Text Generation Inference",
    prefixes=("tgi_",),
    detect=("queue_size", "batch_current_size", "request_count", "request_success", "batch_inference_count"),
    page=Page(
        path="/metrics", port=80, enable="on; --prometheus-port (9000) is a listener of its own", price=1.0,
    ),
    signals={
        "req_running": take("batch_current_size"),
        "req_waiting": take("queue_size"),
        "req_arrived_total": take("request_count"),
        "req_finished_total": take("request_success"),
        "req_failed_total": take("request_failure", err=("incomplete", "generation", "dropped"), zero_with=("request_count",)),
        "req_rejected_total": take(
            "request_failure", err=("overloaded", "validation", "template"), zero_with=("request_count",)
        ),
        # The budget counts max_new_tokens from the start: what is reserved is not available to a new request.
        "kv_usage_ratio": ratio(one("batch_current_max_tokens"), one("batch_max_total_tokens")),
        "kv_capacity_tokens": take("batch_max_total_tokens"),
        "prefix_query_tokens_total": take("request_input_length_sum", quality="at_finish"),
        "prefix_hit_tokens_total": take("request_skipped_tokens_sum", quality="at_finish"),
        "prompt_tokens_total": take("request_input_length_sum", quality="at_finish"),
        "generated_tokens_total": take("request_generated_tokens_sum", quality="at_finish"),
        # One count for each prefill and each decode of a batch.
        "steps_total": take("batch_inference_count"),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        # A decode of the batch is one token for each of its requests.
        "itl_seconds": of("batch_inference_duration", method="decode"),
        "prefill_seconds": of("batch_inference_duration", method="prefill"),
        "e2e_seconds": of("request_duration"),
        "queue_seconds": of("request_queue_duration"),
        "prompt_tokens": of("request_input_length"),
        "output_tokens": of("request_generated_tokens"),
        "max_tokens_requested": of("request_max_new_tokens"),
    },
    facts=(),
    rank_labels=("shard",),
    model_labels=(),
    notes=(
        "`tgi_request_mean_time_per_token_duration` includes the prefill: not read.",
        "KV usage is the share of the token budget that is reserved (`max_new_tokens` counted in full).",
        "Queue time includes the compilation of grammars; failures are missing from all histograms.",
        "`tgi_batch_next_size` has 1,024 buckets and counts requests: not read.",
    ),
    absent={
        **NO_STEPS,
        **NO_CAUSES,
        **NO_LOOP_LAG,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        **NO_PAIRS,
        **NO_TRANSFER,
        **NO_LORA,
        **NO_SPECULATION,
        "iteration_tokens": "batch_next_size counts requests",
        "req_paused": "nothing is set aside",
        "max_num_seqs": "not on the page; /info says it",
        "req_aborted_total": "clients that go away are among the failures (dropped)",
        "req_corrupted_total": "logits are not checked for NaN",
        "req_preempted_total": "the token budget is reserved, so that nothing is preempted",
        "preempted_tokens_total": "the token budget is reserved, so that nothing is preempted",
        "recomputed_tokens_total": "the token budget is reserved, so that nothing is preempted",
        "kv_block_tokens": "blocks are not on the page",
        "kv_used_blocks": "blocks are not on the page",
        "kv_total_blocks": "blocks are not on the page",
        "kv_cached_ratio": "cached prefixes are not told apart",
        "kv_host_usage_ratio": "there is no host tier",
        "kv_evicted_tokens_total": "evictions are not counted",
        "output_reserve_ratio": "all of max_new_tokens is reserved",
        "prefix_hit_ratio": "the two counters say it over any window",
        "engine_asleep": "it never sleeps",
        "ttft_seconds": "not exposed: queue time plus the prefill of a batch come near it",
        "tpot_seconds": "its mean per token includes the prefill",
        "decode_seconds": "batches are timed, the decode of a request is not",
    },
)  # fmt: skip
