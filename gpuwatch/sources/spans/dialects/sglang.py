"""SGLang (`--enable-trace`): a root for the request, a span for each thread that works on it, slices below those.

Roots come from the front end's process, slices from the schedulers', in other exports and often before the root.
`time_in_model_prefill` runs from the dispatch to the first token and so holds the wait; the wait alone is the slice
`prefill_waiting`. `decode_forward` stays open through a retraction: the second prefill is a slice inside it, and what
lies between the event `retract` and that slice is the second wait. A `decode_waiting` after the prefill is a gap in the
output; on a decode worker it is the wait for the batch.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

SPANS = SpanDialect(
    name="sglang",
    about="python -m sglang.launch_server --enable-trace --otlp-traces-endpoint",
    scopes=("sglang",),
    services=("sglang",),
    marks=("thread_label",),
    roots=(r"(?:\S* )?Req \S{1,8}",),
    facts={
        "ttft_s": Said(("gen_ai.latency.time_to_first_token",)),
        "e2e_s": Said(("gen_ai.latency.e2e",)),
        "queue_s": Said(("gen_ai.latency.time_in_queue",)),
        "prefill_s": Said(("gen_ai.latency.time_in_model_prefill",)),
        "decode_s": Said(("gen_ai.latency.time_in_model_decode",)),
        "prompt_tokens": Said(("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")),
        "output_tokens": Said(("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")),
        "cached_tokens": Said(("gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens")),
        "rank": Said(("dp_rank",)),
    },
    request_id=("gen_ai.request.id", "rid"),
    stages={
        "tokenize": "preprocess",
        "api_server_dispatch": "preprocess",
        "dpc_dispatch": "preprocess",
        "request_process": "preprocess",
        "prefill_prepare": "preprocess",
        "decode_prepare": "preprocess",
        "prefill_bootstrap": "queue",
        "decode_bootstrap": "queue",
        "prefill_waiting": "queue",
        "decode_waiting": "queue",
        "prefill_forward": "prefill",
        "chunked_prefill": "prefill",
        "decode_forward": "decode",
        "decode_loop": "decode",
        "fake_output": "decode",
        "prefill_transfer_kv_cache": "transfer",
        "decode_transferred": "transfer",
    },
    passes=(r".*\(host:\S* \| pid:\d+\)", "spec_draft", "spec_verify", "run_batch_cpu", "quick_finish"),
    retracted="retract",
    prefill_holds_queue=True,
    scattered=True,
)
