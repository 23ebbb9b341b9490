"""NVIDIA Dynamo's front end: one `http-request` span, with the time to first token in milliseconds.

Its workers' engines trace for themselves; here only the whole request and its first token are known.
"""

from __future__ import annotations

from .dialect import Said, SpanDialect

SPANS = SpanDialect(
    name="dynamo",
    about="dynamo.frontend with OTEL_EXPORT_ENABLED=1",
    scopes=("dynamo",),
    services=("dynamo",),
    marks=("avg_itl_ms",),
    roots=("http-request",),
    root_has="ttft_ms",
    facts={
        "ttft_s": Said(("ttft_ms",), factor=1e-3),
        "prompt_tokens": Said(("input_tokens",)),
        "output_tokens": Said(("output_tokens",)),
        "cached_tokens": Said(("cached_tokens",)),
    },
    request_id=("request_id",),
    passes=(r"kv_router\..*", "http-request"),
)
