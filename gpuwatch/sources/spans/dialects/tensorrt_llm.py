"""TensorRT-LLM: one `llm_request` span, with queue and time to first token only.

Prefill is what remains of the time to first token; a transfer of KV between context and generation server lies before
the first token. Spans of the disaggregated front end hold these and are no requests of an engine.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

SPANS = SpanDialect(
    name="tensorrt_llm",
    about="trtllm-serve with otlp_traces_endpoint",
    scopes=("trt.llm", "tensorrt_llm"),
    services=("trtllm", "tensorrt"),
    marks=("gen_ai.latency.kv_cache_transfer_time",),
    roots=("llm_request",),
    facts={
        "ttft_s": Said(("gen_ai.latency.time_to_first_token",)),
        "e2e_s": Said(("gen_ai.latency.e2e",)),
        "queue_s": Said(("gen_ai.latency.time_in_queue",)),
        "transfer_s": Said(("gen_ai.latency.kv_cache_transfer_time",)),
        "prompt_tokens": Said(("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")),
        "output_tokens": Said(("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")),
    },
)
