"""SGLang: names of 0.5.18 first, those of 0.3 … 0.5.17 behind them.

Every scheduler process publishes: `dp_rank` is a rank, `tp_rank`, `pp_rank` and `moe_ep_rank` only repeat it. With
priorities there is a series for each beside the total (`priority=""`). Token counters jump when a request ends; the
realtime ones (0.5.7) move with the work.
"""

from .absences import NO_FRAGMENTATION, NO_LOOP_LAG, NO_QUEUE_DETAIL, NO_STEPS
from .dialect import Dialect, Facts, Page
from .reading import Reading, Term, add, first, largest, of, one, product, ratio, take

_PREFILL = ("prefill_compute", "prefill_cache")

DIALECT = Dialect(
    name="sglang",
    title="SGLang",
    prefixes=("sglang:", "sglang_"),
    detect=("num_running_reqs", "num_queue_reqs", "token_usage", "num_requests_total", "prompt_tokens_total"),
    page=Page(path="/metrics", port=30000, enable="--enable-metrics"),
    signals={
        "req_running": take("num_running_reqs", quality="stale_possible"),
        "req_waiting": add(
            one("num_queue_reqs"),
            one("num_grammar_queue_reqs", optional=True),
            one("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs", optional=True),
            one("num_decode_prealloc_queue_reqs", optional=True),
            quality="stale_possible",
        ),
        "req_waiting_capacity": add(
            one("num_queue_reqs"), one("num_decode_prealloc_queue_reqs", optional=True), quality="stale_possible"
        ),
        "req_waiting_deferred": add(
            one("num_grammar_queue_reqs"),
            one("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs", optional=True),
        ),
        "req_waiting_grammar": take("num_grammar_queue_reqs"),
        "req_waiting_bootstrap": take("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"),
        "req_waiting_prealloc": take("num_decode_prealloc_queue_reqs"),
        "req_transferring": Reading((
            one("num_prefill_inflight_queue_reqs", "num_prefill_infight_queue_reqs", optional=True),
            one("num_decode_transfer_queue_reqs", optional=True),
        )),
        "req_paused": take("num_paused_reqs"),
        "req_finished_total": take("num_requests_total"),
        "req_aborted_total": take("num_aborted_requests_total"),
        # A counter appears with its first event; the release that brought realtime tokens has it.
        "req_preempted_total": first(
            take("num_retracted_requests_total", zero_with=("realtime_tokens_total",)),
            take("num_retractions_total", "num_retractions_sum", quality="at_finish"),
        ),
        "preempted_tokens_total": add(
            Term(("num_retracted_input_tokens_total",), zero_with=("realtime_tokens_total",)),
            Term(("num_retracted_output_tokens_total",), zero_with=("realtime_tokens_total",)),
        ),
        # Hybrid models have several pools: the fullest is the pressure.
        "kv_usage_ratio": largest(
            one("token_usage", optional=True), one("full_token_usage", optional=True),
            one("swa_token_usage", optional=True), one("mamba_usage", optional=True),
        ),
        "kv_capacity_tokens": first(
            take("max_total_num_tokens", across="max"), product(one("num_pages"), one("page_size"))
        ),
        "kv_block_tokens": take("page_size", across="max"),
        "kv_total_blocks": take("num_pages", across="max"),
        "kv_used_blocks": ratio(one("kv_used_tokens", "num_used_tokens"), one("page_size")),
        "kv_cached_ratio": ratio(one("kv_evictable_tokens"), one("max_total_num_tokens")),
        "kv_host_usage_ratio": ratio(one("hicache_host_used_tokens"), one("hicache_host_total_tokens")),
        "kv_evicted_tokens_total": take("evicted_tokens_total"),
        "kv_transfer_last_seconds": take("kv_transfer_latency_ms", factor=1e-3, across="max", quality="stale_possible"),
        "kv_transfer_bytes_per_second": take("kv_transfer_speed_gb_s", factor=1e9, quality="stale_possible"),
        "kv_transfer_failed_total": take("num_transfer_failed_reqs_total"),
        "output_reserve_ratio": take("new_token_ratio", across="max"),
        "prefix_query_tokens_total": first(
            take("realtime_tokens_total", mode=_PREFILL), take("prompt_tokens_total", quality="at_finish")
        ),
        "prefix_hit_tokens_total": first(
            take("realtime_tokens_total", mode="prefill_cache"), take("cached_tokens_total", quality="at_finish")
        ),
        "prompt_tokens_total": first(
            take("realtime_tokens_total", mode=_PREFILL), take("prompt_tokens_total", quality="at_finish")
        ),
        "generated_tokens_total": first(
            take("realtime_tokens_total", mode="decode"), take("generation_tokens_total", quality="at_finish")
        ),
        "lora_slots": take("lora_pool_slots_total", across="max"),
        "lora_slots_used": take("lora_pool_slots_used", across="max"),
        "spec_drafts_total": take("spec_verify_calls_total"),
        "spec_accept_length": take("spec_accept_length", across="max"),
        "spec_accept_ratio": take("spec_accept_rate", across="max"),
        "process_start_seconds": take("process_start_time_seconds", bare=True, across="max"),
    },
    histograms={
        "ttft_seconds": of("time_to_first_token_seconds"),
        "itl_seconds": of("inter_token_latency_seconds", "time_per_output_token_seconds"),
        "e2e_seconds": of("e2e_request_latency_seconds"),
        "queue_seconds": of("queue_time_seconds"),
        "prefill_seconds": of("per_stage_req_latency_seconds", stage="prefill_forward"),
        "prompt_tokens": of("prompt_tokens_histogram"),
        "output_tokens": of("generation_tokens_histogram"),
        "kv_transfer_seconds": of("kv_transfer_latency_ms", factor=1e-3),
    },
    facts=(Facts(("cache_config_info",), {"page_size": "kv_block_tokens", "num_pages": "kv_total_blocks"}),),
    inferred={
        "req_arrived_total": "finished + running + waiting; a fall that lasts is booked as aborted",
    },
    also_ended=(),
    rank_labels=("dp_rank",),
    copies=("tp_rank", "pp_rank", "moe_ep_rank", "pid"),
    totals=("priority",),
    notes=(
        "Decode gauges are refreshed every 40 decode steps (`--decode-log-interval`) and may be 30 s old when idle.",
        ("`cache_hit_rate` is the last prefill batch's and 0 after decode reports, `gen_throughput` keeps its last value, "
        "`utilization` is never set, `num_retracted_reqs` is reset by each report: none of them is read."),
        "Time to first token has no bound below 100 ms; before 0.5.10 queue time had none between 0 and 100 ms.",
        "Before 0.5.7 token counters move only when a request ends: no hang can be told from them.",
    ),
    absent={
        **NO_STEPS,
        **NO_LOOP_LAG,
        **NO_QUEUE_DETAIL,
        **NO_FRAGMENTATION,
        "max_num_seqs": "not on the page; /server_info and the arguments say it (max_running_requests)",
        "req_rejected_total": "refusals of a full queue are not counted apart",
        "req_failed_total": "requests are counted without the way they ended",
        "req_corrupted_total": "logits are not checked for NaN",
        "kv_transfer_bytes_total": "bytes of each transfer are shown, not their sum",
        "kv_reserved_unused_ratio": "output_reserve_ratio is the only hint",
        "prefix_hit_ratio": "cache_hit_rate is the last batch's and 0 after decode reports; the counters say it",
        "recomputed_tokens_total": "what retraction threw away is counted, not what was computed again",
        "lora_running_adapters": "slots of the pool are shown, not who uses them",
        "lora_waiting_adapters": "slots of the pool are shown, not who waits",
        "steps_total": "no counter of steps; realtime tokens move with every report",
        "spec_draft_tokens_total": "a gauge of the draft's length, not a counter",
        "spec_accepted_tokens_total": "a gauge of the accepted length, not a counter",
        "engine_asleep": "not exposed",
        "tpot_seconds": "no mean per request; inter-token latency is weighted by tokens",
        "decode_seconds": "decode shows in traces only",
        "max_tokens_requested": "max_tokens of requests is not exposed",
        "iteration_tokens": "batches are gauges of the last report",
    },
)  # fmt: skip
