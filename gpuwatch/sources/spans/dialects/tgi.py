"""Text Generation Inference (`--otlp-endpoint`): tracing spans of its router, durations as Rust prints them.

The span of the handler (`generate`, `generate_stream`, `chat_completions`, …) carries the times once the request has
succeeded; a failed one has none and is not seen. Spans of the same names lie below it. `queued` is the wait; the first
`infer` is the batch that prefills, and its end the first token; later ones are steps of decoding, `waiting` the gaps
between them. Without the children only validation and queue are known: `inference_time` holds prefill and decode.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

_HANDLERS = (
    "generate", "generate_stream", "generate_stream_internal", "compat_generate", "chat_completions", "completions",
    "vertex_compatibility", "sagemaker_compatibility", "kserve_model_infer",
)  # fmt: skip

SPANS = SpanDialect(
    name="tgi",
    about="text-generation-launcher --otlp-endpoint",
    services=("text-generation-inference",),
    marks=("inference_time",),
    roots=_HANDLERS,
    root_has="inference_time",
    facts={
        "e2e_s": Said(("total_time",), as_text=True),
        "front_s": Said(("validation_time",), as_text=True),
        "queue_s": Said(("queue_time",), as_text=True),
        "prompt_tokens": Said(("prompt_tokens", "input_length")),
        "output_tokens": Said(("generated_tokens",)),
    },
    request_id=(),
    outcome=("finish_reason",),
    stages={"queued": "queue", "infer": "decode", "waiting": "decode"},
    first_stages={"infer": "prefill"},
    passes=(*_HANDLERS, "generate_best_of", "validate", "tokenize", "batch", "prefill", "decode", "filter_batch",
            "clear_cache", "send_generations", "send_generation", "send_error", "send_errors", "filter_send_generations",
            "batching_task", "health"),
    scattered=True,
)  # fmt: skip
