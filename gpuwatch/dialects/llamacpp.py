"""llama.cpp's server: no labels, no histograms; counters move when a slot is released, `n_decode_total` with each batch.

The scrape is a task in the queue of the decoding thread: it waits for the batch in progress, so its duration is itself
a signal and no cost.
"""

from .absences import (
    NO_CAUSES,
    NO_FRAGMENTATION,
    NO_LOOP_LAG,
    NO_LORA,
    NO_PAIRS,
    NO_QUEUE_DETAIL,
    NO_STEPS,
    NO_TRANSFER,
)  # fmt: skip
from .dialect import Dialect, Page
from .reading import Mean, add, one, take

DIALECT = Dialect(
    name="llamacpp",
    title="llama.cpp server",
    prefixes=("llamacpp:", "llamacpp_"),
    detect=("requests_processing", "requests_deferred", "tokens_predicted_total"),
    page=Page(path="/metrics", port=8080, enable="--metrics", price=0.02, timeout_s=10.0),
    signals={
        "req_running": take("requests_processing"),
        "req_waiting": take("requests_deferred"),
        "kv_usage_ratio": take("kv_cache_usage_ratio"),
        "prompt_tokens_total": take("prompt_tokens_total", quality="at_finish"),
        "generated_tokens_total": take("tokens_predicted_total", quality="at_finish"),
        # What is computed and what is found in a slot's cache are counted apart.
        "prefix_query_tokens_total": add(
            one("prompt_tokens_total"), one("prompt_tokens_cached_total"), quality="at_finish"
        ),
        "prefix_hit_tokens_total": take("prompt_tokens_cached_total", quality="at_finish"),
        "steps_total": take("n_decode_total"),
        "spec_drafts_total": take("spec_decode_num_drafts_total", quality="at_finish"),
        "spec_draft_tokens_total": take("spec_decode_num_draft_tokens_total", quality="at_finish"),
        "spec_accepted_tokens_total": take("spec_decode_num_accepted_tokens_total", quality="at_finish"),
    },
    histograms={},
    means={
        # Seconds of generation over tokens generated: the mean gap, request by request, as slots are released.
        "itl_seconds": Mean(take("tokens_predicted_seconds_total"), take("tokens_predicted_total")),
    },
    facts=(),
    rank_labels=("model",),
    model_labels=("model",),
    notes=(
        "`requests_processing` is bounded by the slots (`-np`) and never shows demand; `requests_deferred` is the queue.",
        "Token counters jump when a slot is released; only `n_decode_total` tells a hang, and it stands still in a long batch.",
        (
            "A scrape waits for the batch in progress, and for one of the server's few HTTP threads (`--threads-http`): "
            "it may take seconds and is given ten."
        ),
        (
            "`prompt_tokens_seconds` and `predicted_tokens_seconds` are reset by whoever reads them: not read. "
            "KV usage left the page in 2025."
        ),
        "A router (`--models`) wants `?model=` in the URL.",
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
        "req_paused": "nothing is set aside",
        "max_num_seqs": "slots are in /props (total_slots), not on the page",
        "req_arrived_total": "requests are not counted",
        "req_finished_total": "requests are not counted",
        "req_aborted_total": "requests are not counted",
        "req_rejected_total": "requests are not counted",
        "req_failed_total": "requests are not counted",
        "req_corrupted_total": "logits are not checked for NaN",
        "req_preempted_total": "a slot keeps its KV; what does not fit fails",
        "preempted_tokens_total": "a slot keeps its KV; what does not fit fails",
        "recomputed_tokens_total": "a slot keeps its KV; what does not fit fails",
        "kv_capacity_tokens": "the context is in /props and /slots, not on the page",
        "kv_block_tokens": "cells of single tokens, no blocks",
        "kv_used_blocks": "cells of single tokens, no blocks",
        "kv_total_blocks": "cells of single tokens, no blocks",
        "kv_cached_ratio": "prompt caches are not on the page",
        "kv_host_usage_ratio": "prompt caches are not on the page",
        "kv_evicted_tokens_total": "prompt caches are not on the page",
        "output_reserve_ratio": "nothing is reserved",
        "prefix_hit_ratio": "the two counters say it over any window",
        "spec_accept_length": "the counters say it over any window",
        "spec_accept_ratio": "the counters say it over any window",
        "process_start_seconds": "in a header of the answer, not on the page",
        "engine_asleep": "in /props, not on the page",
        "ttft_seconds": "requests are not timed on the page",
        "tpot_seconds": "requests are not timed on the page",
        "e2e_seconds": "requests are not timed on the page",
        "queue_seconds": "requests are not timed on the page",
        "prefill_seconds": "seconds of prompts are summed, their requests not counted",
        "decode_seconds": "seconds of generation are summed, their requests not counted",
        "prompt_tokens": "requests are not counted",
        "output_tokens": "requests are not counted",
        "max_tokens_requested": "max_tokens of requests is not exposed",
        "iteration_tokens": "busy slots per decode are an average since the start",
    },
)
