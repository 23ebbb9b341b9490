"""Reading OTLP spans: the decoder alone, and through a real HTTP server on the loopback interface."""

from __future__ import annotations

import os

from gpuwatch.model import Subject
from tests.bench.measure import by_turns
from tests.bench.row import Row

SPANS = 512
ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": 0.31, "gen_ai.latency.e2e": 4.2, "gen_ai.latency.time_in_queue": 0.11,
    "gen_ai.latency.time_in_model_prefill": 0.2, "gen_ai.latency.time_in_model_decode": 3.9,
    "gen_ai.usage.prompt_tokens": 812, "gen_ai.usage.completion_tokens": 190, "gen_ai.request.id": "cmpl-0",
}  # fmt: skip


def export() -> bytes:
    """One export of 512 spans of a real engine's shape, eight attributes each."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for i in range(SPANS):
        span = scope.spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name="llm_request", kind=2)
        span.start_time_unix_nano = 1_764_000_000_000_000_000 + i * 10**6
        span.end_time_unix_nano = span.start_time_unix_nano + 4_200_000_000
        for key, value in ATTRIBUTES.items():
            target = span.attributes.add(key=key).value
            if isinstance(value, str):
                target.string_value = f"cmpl-{i}"
            elif isinstance(value, int):
                target.int_value = value
            else:
                target.double_value = value
    return message.SerializeToString()


def decoded() -> Row:
    """Bytes to columns, against protobuf with a dictionary for each span."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from gpuwatch.sources.spans import SpanDecoder

    body = export()
    decoder = SpanDecoder(lambda _: Subject(engine="bench"), b"salt")
    assert decoder.decode(body, "application/x-protobuf").dropped == 0

    def naive() -> None:
        message = ExportTraceServiceRequest.FromString(body)
        for span in message.resource_spans[0].scope_spans[0].spans:
            {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}

    now, before = by_turns(lambda: decoder.decode(body, "application/x-protobuf"), naive)
    return Row("spans/s", 150_000, SPANS / now, SPANS / before, higher_is_better=True,
        note="eight attributes; the decoder alone, without a server; naive is protobuf and a dict for each span, no columns",
    )  # fmt: skip
