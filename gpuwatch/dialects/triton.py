"""Triton with the TensorRT-LLM backend: a few metrics whose labels say which number they hold.

A server of several models shows all of them: those with series of the backend are ranks, tokenizers and ensembles
around them are none. Old builds cast the fraction of used blocks to an integer, so it is computed.
"""

from .absences import NO_FRAGMENTATION, NO_LOOP_LAG, NO_LORA, NO_PAIRS, NO_QUEUE_DETAIL, NO_SPECULATION, NO_TRANSFER
from .dialect import Dialect, Page
from .reading import Mean, Reading, first, one, product, ratio, take

_REQUESTS, _BLOCKS, _BATCHER = (
    "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_inflight_batcher_metrics",
)  # fmt: skip


def _requests(kind: str) -> Reading:
    return take(_REQUESTS, request_type=kind)


def _blocks(kind: str) -> Reading:
    return take(_BLOCKS, kv_cache_block_type=kind, across="max")


DIALECT = Dialect(
    name="triton",
    title="Triton (TensorRT-LLM backend)",
    prefixes=("",),
    detect=(),
    bare_detect=(_REQUESTS, _BLOCKS, _BATCHER),
    page=Page(path="/metrics", port=8002, enable="on unless started with --allow-metrics=false", price=1.0),
    signals={
        "req_running": first(_requests("active"), _requests("scheduled")),
        "req_waiting": _requests("waiting"),
        "req_paused": take(_BATCHER, inflight_batcher_specific_metric="paused_requests"),
        "max_num_seqs": take(_REQUESTS, request_type="max", across="max"),
        "req_finished_total": take("nv_inference_request_success"),
        "req_failed_total": take("nv_inference_request_failure"),
        "kv_usage_ratio": first(
            ratio(one(_BLOCKS, kv_cache_block_type="used"), one(_BLOCKS, kv_cache_block_type="max")),
            _blocks("fraction"),
        ),
        "kv_capacity_tokens": product(
            one(_BLOCKS, kv_cache_block_type="max"), one(_BLOCKS, kv_cache_block_type="tokens_per")
        ),
        "kv_block_tokens": _blocks("tokens_per"),
        "kv_used_blocks": _blocks("used"),
        "kv_total_blocks": _blocks("max"),
        "prompt_tokens_total": take("nv_llm_input_token_len_sum", quality="at_finish"),
        "generated_tokens_total": take("nv_llm_output_token_len_sum", quality="at_finish"),
        "steps_total": take("nv_trt_llm_general_metrics", general_type="iteration_counter", across="max"),
        "step_prefill_tokens": take(
            _BATCHER, inflight_batcher_specific_metric="total_context_tokens", across="max"
        ),
        "step_decode_tokens": take(_BATCHER, inflight_batcher_specific_metric="generation_requests", across="max"),
    },
    means={
        "e2e_seconds": Mean(
            take("nv_inference_request_duration_us", factor=1e-6), take("nv_inference_request_success")
        ),
        "prompt_tokens": Mean(take("nv_llm_input_token_len_sum"), take("nv_llm_input_token_len_count")),
        "output_tokens": Mean(take("nv_llm_output_token_len_sum"), take("nv_llm_output_token_len_count")),
    },
    histograms={},
    facts=(),
    inferred={
        "req_arrived_total": "finished + failed + running + waiting; a fall that lasts is booked as aborted",
    },
    also_ended=("req_failed_total",),
    rank_labels=("model", "version"),
    model_labels=("model",),
    notes=(
        "Old builds lack waiting, reused and fraction, or cast them to integers: used ÷ max is read instead.",
        "`nv_inference_queue_duration_us` is the wait before Triton's own scheduler, not before the engine: not read.",
        "A token for each decoding request is what a step generates; speculative decoding makes it more.",
    ),
    absent={
        **NO_LOOP_LAG,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        **NO_PAIRS,
        **NO_TRANSFER,
        **NO_LORA,
        **NO_SPECULATION,
        "req_waiting_capacity": "waiting requests are not split by cause",
        "req_waiting_deferred": "waiting requests are not split by cause",
        "req_waiting_grammar": "waiting for a grammar is not told apart",
        "req_aborted_total": "cancelled requests are not counted apart",
        "req_rejected_total": "part of the failures",
        "req_corrupted_total": "logits are not checked for NaN",
        "req_preempted_total": "pauses are in the scheduler's log only",
        "preempted_tokens_total": "pauses are in the scheduler's log only",
        "recomputed_tokens_total": "pauses are in the scheduler's log only",
        "kv_cached_ratio": "reusable blocks are not told apart",
        "kv_host_usage_ratio": "the host tier is not on the page",
        "kv_evicted_tokens_total": "evictions are not counted",
        "output_reserve_ratio": "GUARANTEED_NO_EVICT reserves all of max_tokens; no metric says how much",
        "prefix_hit_ratio": "reused blocks are counted, looked up ones are not",
        "prefix_query_tokens_total": "reused blocks are counted, looked up ones are not",
        "prefix_hit_tokens_total": "reused blocks are counted, tokens are not",
        "step_seconds": "iterations are counted, not timed",
        "step_longest_prefill_tokens": "single prefill chunks are not on the page",
        "process_start_seconds": "not on the page",
        "engine_asleep": "not exposed",
        "ttft_seconds": "not exposed by the backend",
        "itl_seconds": "not exposed by the backend",
        "tpot_seconds": "not exposed by the backend",
        "queue_seconds": "Triton's own queue is timed, not the engine's",
        "prefill_seconds": "not exposed by the backend",
        "decode_seconds": "not exposed by the backend",
        "max_tokens_requested": "max_tokens of requests is not exposed",
        "iteration_tokens": "a gauge of the last iteration",
    },
)  # fmt: skip
