"""vLLM: one `llm_request` span a finished request, sent 0.5–4.5 s after its end.

V1 says queue, prefill (from being scheduled to the first token) and decode; waits after a preemption hide in the last
two. V0 says queue and time to first token only: its prefill is the rest. Requests that a client aborts have no span.
Newer versions may send children for the stages; those are exact and used instead.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

SPANS = SpanDialect(
    name="vllm",
    about="vllm serve --otlp-traces-endpoint",
    scopes=("vllm",),
    resource=("vllm.process_id", "vllm.process_kind", "vllm.instrumenting_module_name"),
    services=("vllm",),
    roots=("llm_request",),
    facts={
        "ttft_s": Said(("gen_ai.latency.time_to_first_token",)),
        "e2e_s": Said(("gen_ai.latency.e2e",)),
        "queue_s": Said(("gen_ai.latency.time_in_queue",)),
        "prefill_s": Said(("gen_ai.latency.time_in_model_prefill",)),
        "decode_s": Said(("gen_ai.latency.time_in_model_decode",)),
        "prompt_tokens": Said(("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")),
        "output_tokens": Said(("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")),
        "cached_tokens": Said(("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")),
    },
    stages={
        "vllm_queue": "queue",
        "vllm_prefill": "prefill",
        "vllm_decode": "decode",
        "vllm_async_kv_transfer": "transfer",
    },
    passes=("vllm_step_execution",),
)
