"""OTLP in: the real exporter over HTTP, protobuf and JSON alike, whatever is sent."""

import asyncio
import gzip
import json
import math
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

from engine_shim.request import Request, Stage
from engine_shim.telemetry.otlp_wire import OtlpEncoder
from gpuwatch.model import OUTCOMES, STAGES, Subject
from gpuwatch.sources.spans.decoder import Decoded, SpanDecoder
from gpuwatch.sources.spans.inbox import SpanInbox
from gpuwatch.wire.otlp import OtlpError, OtlpLimits

PROTO, JSON = "application/x-protobuf", "application/json"
SUBJECT = Subject(engine="e")
T0 = 1_764_000_000


def decoder(**settings):
    return SpanDecoder(lambda resource: Subject(engine=resource.get("service.name", "e")), b"salt", **settings)


def rows(decoded):
    """{stage: (start, end)} relative to T0, over all requests of one export."""
    found = {}
    for spans in decoded.spans:
        for code, start, end in zip(spans.stage, spans.start, spans.end, strict=True):
            found[STAGES[code]] = (round(start - T0, 4), round(end - T0, 4))
    return found


@contextmanager
def collector():
    """A real HTTP server that keeps what is posted to it."""
    posts = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((body, self.headers["Content-Type"], self.headers.get("Content-Encoding", "")))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", posts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


VLLM_ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.e2e": 2.0,
    "gen_ai.latency.time_in_queue": 0.3,
    "gen_ai.latency.time_in_model_prefill": 0.15,
    "gen_ai.latency.time_in_model_decode": 1.4,
    "gen_ai.usage.prompt_tokens": 512,
    "gen_ai.usage.completion_tokens": 70,
    "gen_ai.request.id": "cmpl-secret-id",
    "gen_ai.request.max_tokens": 128,
    "gen_ai.prompt.0.content": "a prompt that nobody may keep",
}


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_real_exporter_of_a_vllm_like_process_is_understood(compression):
    """One span with latencies becomes the request and its stages, in order and without gaps."""
    with collector() as (url, posts):
        provider = TracerProvider(resource=Resource.create({"service.name": "vllm-a"}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url, compression=compression)))
        tracer = provider.get_tracer("vllm.tracing.otel")
        span = tracer.start_span("llm_request", kind=SpanKind.SERVER, start_time=T0 * 10**9, attributes=VLLM_ATTRIBUTES)
        span.end(T0 * 10**9 + 2 * 10**9)
        tracer.start_span("Load model", start_time=T0 * 10**9).end(T0 * 10**9 + 5)
        provider.shutdown()
    decoded = [decoder().decode(*post) for post in posts]
    assert rows(decoded[0]) == {
        "request": (0, 2.0), "preprocess": (0, 0.05), "queue": (0.05, 0.35), "prefill": (0.35, 0.5),
        "decode": (0.5, 1.9), "postprocess": (1.9, 2.0),
    }  # fmt: skip
    spans = decoded[0].spans[0]
    assert spans.subject == Subject(engine="vllm-a")
    assert set(spans.prompt_tokens) == {512}
    assert set(spans.output_tokens) == {70}
    assert np.isnan(spans.cached_tokens).all()
    assert len(set(spans.request)) == 1
    assert (decoded[1].spans, decoded[1].foreign, decoded[1].dropped) == ((), 1, 0)


def finished_request(**settings):
    request = Request("r1", 40, 20, float(T0), 20, cached_tokens=16, output_tokens=20, **settings)
    request.stages = [
        (Stage.QUEUE, T0, T0 + 1.0), (Stage.PREFILL, T0 + 1.0, T0 + 1.5), (Stage.DECODE, T0 + 1.5, T0 + 2.0),
        (Stage.REQUEUE, T0 + 2.0, T0 + 3.0), (Stage.PREFILL, T0 + 3.0, T0 + 3.5), (Stage.DECODE, T0 + 3.5, T0 + 4.0),
    ]  # fmt: skip
    request.finished_at, request.first_token_at, request.last_token_at = T0 + 4.0, T0 + 1.5, T0 + 4.0
    request.finish_reason = "length"
    return request


def test_the_bundled_engines_tree_is_one_row_a_span_with_the_hash_of_its_ring():
    body = OtlpEncoder("shim", "0.1.0", 0, "tiny").encode([(finished_request(), 0xABCDEF)])
    decoded = decoder().decode(body, PROTO)
    (spans,) = decoded.spans
    assert [STAGES[code] for code in spans.stage] == [
        "request", "queue", "prefill", "decode", "requeue", "prefill", "decode",
    ]  # fmt: skip
    assert set(spans.request.tolist()) == {0xABCDEF}
    assert OUTCOMES[spans.outcome[0]] == "length"
    assert set(spans.cached_tokens) == {16}
    assert set(spans.output_tokens) == {20}


def export(*spans, resource=None, scope="s"):
    message = ExportTraceServiceRequest()
    batch = message.resource_spans.add()
    for key, value in (resource or {}).items():
        batch.resource.attributes.add(key=key).value.string_value = value
    scoped = batch.scope_spans.add()
    scoped.scope.name = scope
    for name, start, end, attributes in spans:
        span = scoped.spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name=name)
        span.start_time_unix_nano, span.end_time_unix_nano = int(start * 1e9), int(end * 1e9)
        for key, value in attributes.items():
            target = span.attributes.add(key=key).value
            setattr(target, {str: "string_value", int: "int_value", float: "double_value"}[type(value)], value)
    return message


def as_json(message):
    """As exporters write JSON: hex ids, 64-bit integers as text."""
    tree = MessageToDict(message)
    for resource_spans in tree["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span, raw in zip(scope_spans["spans"], message.resource_spans[0].scope_spans[0].spans, strict=True):
                span["traceId"], span["spanId"] = raw.trace_id.hex(), raw.span_id.hex()
                if raw.parent_span_id:
                    span["parentSpanId"] = raw.parent_span_id.hex()
    return json.dumps(tree).encode()


def test_json_and_protobuf_say_the_same():
    message = export(("llm_request", T0, T0 + 2, VLLM_ATTRIBUTES), ("other", T0, T0 + 1, {}))
    one = decoder().decode(message.SerializeToString(), PROTO)
    other = decoder().decode(as_json(message), "application/json; charset=utf-8")
    assert rows(one) == rows(other)
    assert one.spans[0].request.tolist() == other.spans[0].request.tolist()
    assert np.array_equal(one.spans[0].prompt_tokens, other.spans[0].prompt_tokens)
    assert (one.foreign, other.foreign) == (1, 1)


def test_no_text_and_no_id_survives():
    message = export(("llm_request", T0, T0 + 2, VLLM_ATTRIBUTES))
    kept = repr(decoder().decode(message.SerializeToString(), PROTO))
    assert "secret" not in kept
    assert "nobody" not in kept
    one, other = (SpanDecoder(lambda _: SUBJECT, salt) for salt in (b"1", b"2"))
    body = message.SerializeToString()
    assert one.decode(body, PROTO).spans[0].request[0] != other.decode(body, PROTO).spans[0].request[0]


def test_stage_spans_whose_parent_comes_in_another_export_keep_their_times():
    message = ExportTraceServiceRequest()
    span = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(name="queue", parent_span_id=b"12345678", trace_id=b"t" * 16, span_id=b"s" * 8)
    )
    span.start_time_unix_nano, span.end_time_unix_nano = T0 * 10**9, T0 * 10**9 + 10**9
    inbox = SpanInbox(SUBJECT)
    assert inbox.put(decoder().decode(message.SerializeToString(), PROTO))
    assert inbox.take(T0 + 2.0).spans == (), "the parent may still come"
    batch = inbox.take(T0 + 12.0)
    assert rows(batch) == {"queue": (0, 1)}
    assert np.isnan(batch.spans[0].prompt_tokens).all()


@pytest.mark.parametrize(
    ("attributes", "stages"),
    [
        ({}, {"request"}),
        ({"gen_ai.latency.time_in_queue": -0.3, "gen_ai.latency.time_in_model_prefill": 0.1}, {"request"}),
        ({"gen_ai.latency.time_in_queue": math.nan, "gen_ai.latency.time_in_model_prefill": 0.1}, {"request"}),
        ({"gen_ai.latency.time_in_queue": 0.0, "gen_ai.latency.time_in_model_prefill": 0.1}, {"request", "prefill"}),
        (
            {"gen_ai.latency.time_in_queue": 9e5, "gen_ai.latency.time_in_model_prefill": 0.1},
            {"request", "queue", "prefill"},
        ),
    ],
    ids=["none", "negative", "nan", "no-wait", "absurd"],
)
def test_latencies_that_make_no_sense_make_no_stages(attributes, stages):
    decoded = decoder().decode(export(("llm_request", T0, T0 + 2, attributes)).SerializeToString(), PROTO)
    assert set(rows(decoded)) == stages
    assert all(0 <= start <= end <= 2 for start, end in rows(decoded).values()), "never outside the request"


def test_spans_that_end_before_they_begin_are_dropped_and_counted():
    decoded = decoder().decode(
        export(
            ("llm_request", T0 + 2, T0, {}), ("llm_request", 0, 0, {}), ("llm_request", T0, T0, {})
        ).SerializeToString(),
        PROTO,
    )
    assert decoded.dropped == 2
    assert len(decoded.spans[0].start) == 1


def test_how_a_request_ended_is_one_of_the_known_outcomes():
    def outcome(**attributes):
        message = export(("llm_request", T0, T0 + 1, {k.replace("__", "."): v for k, v in attributes.items()}))
        return OUTCOMES[decoder().decode(message.SerializeToString(), PROTO).spans[0].outcome[0]]

    assert outcome(gen_ai__response__finish_reasons="stop") == "stop"
    assert outcome(gen_ai__response__finish_reasons="abort") == "abort"
    assert outcome(gen_ai__response__finish_reasons="<script>") == ""
    assert outcome(error__type="Timeout") == "error"
    assert outcome() == ""


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "reason"),
    [
        (b"\xff\xff\xff", PROTO, "", "not an ExportTraceServiceRequest"),
        (b"{", JSON, "", "not an ExportTraceServiceRequest"),
        (b'{"resourceSpans": 7}', JSON, "", "not an ExportTraceServiceRequest"),
        (b"[" * 100_000, JSON, "", "not an ExportTraceServiceRequest"),
        (b"", "text/plain", "", "content type"),
        (b"plain", PROTO, "gzip", "not gzip"),
        (gzip.compress(b"x" * 3_000_000), PROTO, "gzip", "once inflated"),
        (gzip.compress(b"x" * 100)[:-4], PROTO, "gzip", "no end"),
        (b"", PROTO, "br", "encoding"),
        (b"x" * 2_000_000, PROTO, "", "at most"),
    ],
    ids=["bytes", "json", "shape", "deep", "type", "gzip", "bomb", "cut", "br", "large"],
)
def test_garbage_is_refused_with_a_reason(body, content_type, encoding, reason):
    with pytest.raises(OtlpError, match=reason):
        decoder(limits=OtlpLimits(body_bytes=1_000_000)).decode(body, content_type, encoding)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_decoded_or_refused(body):
    for content_type in (PROTO, JSON):
        try:
            decoded = decoder().decode(body, content_type)
        except OtlpError:
            continue
        assert isinstance(decoded, Decoded)


def test_a_flood_in_one_export_is_cut_and_counted():
    body = export(*[("llm_request", T0, T0 + 1, {})] * 50).SerializeToString()
    decoded = decoder(limits=OtlpLimits(spans=20)).decode(body, PROTO)
    assert (len(decoded.spans[0].start), decoded.dropped) == (20, 30)


def test_the_inbox_hands_over_what_came_and_refuses_what_does_not_fit():
    decoded = decoder().decode(export(*[("llm_request", T0, T0 + 1, {})] * 6).SerializeToString(), PROTO)
    inbox = SpanInbox(SUBJECT, most_rows=10)
    assert inbox.put(decoded)
    assert not inbox.put(decoded)
    batch = asyncio.run(inbox.poll(5.0))
    assert (sum(len(s.start) for s in batch.spans), batch.dropped, batch.role) == (6, 6, "spans")
    assert inbox.put(decoded), "there is room again"
    assert asyncio.run(inbox.poll(6.0)).dropped == 0


def test_many_threads_may_put_while_the_agent_polls():
    """Nothing is lost and nothing comes twice: rows in = rows out + rows dropped."""
    decoded = decoder().decode(export(("llm_request", T0, T0 + 1, {})).SerializeToString(), PROTO)
    inbox = SpanInbox(SUBJECT, most_rows=50)
    threads = [threading.Thread(target=lambda: [inbox.put(decoded) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = dropped = 0
    while any(thread.is_alive() for thread in threads):
        batch = inbox.take(0.0)
        taken, dropped = taken + len(batch.spans), dropped + batch.dropped
    last = inbox.take(0.0)
    assert taken + len(last.spans) + dropped + last.dropped == 2000
