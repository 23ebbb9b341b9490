"""The GenAI semantic conventions of OpenTelemetry, old and new names: what a client or a gateway says of its calls.

Used where no engine is recognised. The conventions know no queue and no prefill: the whole request, its tokens, and the
time to the first piece where the response was streamed.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

_OPERATIONS = ("chat", "text_completion", "generate_content", "completion", "openai.chat", "openai.completion")

SPANS = SpanDialect(
    name="genai",
    about="any OpenTelemetry GenAI instrumentation",
    marks=(
        "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens", "gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token",
    ),
    roots=(*(rf"{operation}(?: .*)?" for operation in _OPERATIONS), "llm_request"),
    facts={
        "ttft_s": Said((
            "gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token",
            "gen_ai.latency.time_to_first_token",
        )),
        "e2e_s": Said(("gen_ai.latency.e2e",)),
        "queue_s": Said(("gen_ai.latency.time_in_queue",)),
        "prefill_s": Said(("gen_ai.latency.time_in_model_prefill",)),
        "decode_s": Said(("gen_ai.latency.time_in_model_decode",)),
        "prompt_tokens": Said(("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")),
        "output_tokens": Said(("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")),
        "cached_tokens": Said((
            "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens",
        )),
    },
    request_id=("gen_ai.request.id", "gen_ai.response.id"),
)  # fmt: skip
