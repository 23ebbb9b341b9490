"""No prompt, no completion, no raw id and no free text leaves the decoder: sentinels in every place a span has."""

import logging

import msgspec
import pytest

from gpuwatch.model import STAGES, Batch, Subject
from gpuwatch.recording.codec import Encoder
from tests.spans.exports import JSON, PROTO, Trace, as_json, decoder, taken

SENTINEL = "the-user-wrote-this"
SAID = {
    "gen_ai.prompt": SENTINEL, "gen_ai.prompt.0.content": SENTINEL, "gen_ai.completion": SENTINEL,
    "gen_ai.completion.0.content": SENTINEL, "gen_ai.input.messages": SENTINEL, "gen_ai.output.messages": [SENTINEL],
    "input.value": SENTINEL, "output.value": SENTINEL, "llm.prompts": [SENTINEL, SENTINEL], "db.statement": SENTINEL,
    "gen_ai.request.id": SENTINEL, "rid": SENTINEL, "thread_label": SENTINEL, "gen_ai.response.id": SENTINEL,
    "gen_ai.response.finish_reasons": [SENTINEL], "error.type": SENTINEL, "total_time": SENTINEL,
    "inference_time": SENTINEL, "queue_time": SENTINEL, "gen_ai.usage.prompt_tokens": SENTINEL,
    "gen_ai.latency.time_to_first_token": SENTINEL,
}  # fmt: skip
SHAPES = {
    "vllm.tracing.otel": "llm_request", "sglang server": " Req the-user", "trt.llm": "llm_request",
    "engine_shim": "llm_request", "opentelemetry-otlp": "generate", "acme": SENTINEL, "": "chat " + SENTINEL,
}  # fmt: skip


def export(scope, name):
    trace = Trace(scope, {"service.name": "e", "k8s.pod.name": "pod"})
    for i in range(8):
        root = trace.span(name, i, i + 1.0, SAID, kind=2, events=[(SENTINEL, i), ("retract", i)], error=True)
        trace.span(SENTINEL, i, i + 0.5, SAID, parent=root)
        trace.span("prefill_waiting", i, i + 0.5, SAID, parent=root)
    for span in trace.scope.spans:
        span.status.message = SENTINEL
        span.trace_state = SENTINEL
        span.links.add(trace_id=b"l" * 16, span_id=b"s" * 8).attributes.add(key=SENTINEL).value.string_value = SENTINEL
        for event in span.events:
            event.attributes.add(key="exception.message").value.string_value = SENTINEL
    return trace


@pytest.mark.parametrize("scope", SHAPES, ids=lambda scope: scope or "no-scope")
@pytest.mark.parametrize("kind", [PROTO, JSON], ids=["protobuf", "json"])
def test_no_text_of_a_span_reaches_a_batch_a_log_or_the_journal(scope, kind, caplog):
    """Twice the same export, so that the second goes by learned layouts."""
    caplog.set_level(logging.DEBUG)
    trace = export(scope, SHAPES[scope])
    body = trace.body if kind == PROTO else as_json(trace.message)
    assert SENTINEL.encode() in body
    found = taken(body, body, kind=kind)
    batch = Batch("spans", "spans", Subject(host="h"), 1.0, spans=tuple(found))
    journalled = Encoder().encode(1.0, [batch])
    assert SENTINEL.encode() not in journalled
    assert SENTINEL not in repr(found) + caplog.text
    decoded = decoder().decode(body, kind)
    assert SENTINEL not in repr(decoded.reasons)
    assert SENTINEL not in repr([msgspec.structs.asdict(s) for s in decoded.spans])
    for spans in found:
        assert set(spans.stage.tolist()) <= set(range(len(STAGES)))


@pytest.mark.parametrize("kind", [PROTO, JSON], ids=["protobuf", "json"])
def test_an_error_about_an_export_does_not_quote_it(kind):
    body = (b"\x0a\xff" + SENTINEL.encode()) if kind == PROTO else b'{"resourceSpans": "' + SENTINEL.encode() + b'"}'
    with pytest.raises(ValueError, match="not an ExportTraceServiceRequest") as error:
        decoder().decode(body, kind)
    assert SENTINEL not in str(error.value)
