"""The bundled engine: a span a request with a child for each stage, in the words of this project."""

from __future__ import annotations

from ....model import STAGES
from .dialect import Said, SpanDialect

SPANS = SpanDialect(
    name="engine_shim",
    about="python -m engine_shim serve --otlp-endpoint",
    scopes=("engine_shim",),
    resource=("shim.rank",),
    roots=("llm_request",),
    facts={
        "ttft_s": Said(("gen_ai.latency.time_to_first_token",)),
        "e2e_s": Said(("gen_ai.latency.e2e",)),
        "queue_s": Said(("gen_ai.latency.time_in_queue",)),
        "prefill_s": Said(("gen_ai.latency.time_in_model_prefill",)),
        "decode_s": Said(("gen_ai.latency.time_in_model_decode",)),
        "prompt_tokens": Said(("gen_ai.usage.input_tokens",)),
        "output_tokens": Said(("gen_ai.usage.output_tokens",)),
        "cached_tokens": Said(("gen_ai.usage.cache_read.input_tokens",)),
    },
    stages={stage: stage for stage in STAGES if stage != "request"},
    hashed_ids=True,
    has_children=True,
)
