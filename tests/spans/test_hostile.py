"""Whatever is sent to the decoder is decoded or refused with a reason; what protobuf reads, it reads alike."""

import json
import math
import struct
import time

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpuwatch.sources.spans.decoder import Decoded
from gpuwatch.sources.spans.dialects import wanted
from gpuwatch.wire.otlp import ExportReader, OtlpError, OtlpLimits
from tests.spans.exports import JSON, PROTO, SERVER, Trace, decoder, nanoseconds, stages, taken
from tests.spans.test_dialects import PLAIN, VLLM_V1, new_sglang, sglang, tgi, vllm

SEEDS = [vllm(VLLM_V1).body, sglang(new_sglang(), *PLAIN).body, tgi(("queued", 0, 0.3), ("infer", 0.3, 0.5)).body]
WANTED = wanted()


def by_protobuf(body):
    """What the official parser reads of every span: the same facts, in a dictionary for each."""
    message = ExportTraceServiceRequest.FromString(body)
    found = []
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            found += [one_span(span) for span in scope_spans.spans]
    return found


def one_span(span):
    good = (
        len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in (0, 8) and any(span.span_id)
    )
    numbers, texts = {}, {}
    for attribute in span.attributes:
        key, value = attribute.key.encode(), attribute.value
        which = value.WhichOneof("value")
        if key in WANTED.numbers:
            numbers.pop(key, None)
            if which in ("double_value", "int_value"):
                numbers[key] = float(getattr(value, which))
        elif key in WANTED.texts:
            texts.pop(key, None)
            if which == "string_value":
                texts[key] = value.string_value.encode()[:256]
            elif which == "int_value":
                texts[key] = str(value.int_value).encode()
            elif which == "array_value" and value.array_value.values:
                texts[key] = value.array_value.values[0].string_value.encode()[:256]
    ids = (span.trace_id[8:], span.span_id, span.parent_span_id) if good else ()
    return (
        good, ids, span.start_time_unix_nano, span.end_time_unix_nano, span.name.encode()[:256], span.status.code == 2,
        {WANTED.numbers[k]: repr(v) for k, v in numbers.items() if not math.isnan(v)},
        {WANTED.texts[k]: v for k, v in texts.items() if v},
    )  # fmt: skip


def by_us(reader, body):
    found = []
    for scope in reader.read(body, PROTO).scopes:
        spans = scope.spans
        for i in range(spans.count):
            parent = int(spans.parent[i]).to_bytes(8, "big") if spans.parent[i] else b""
            good = bool(spans.ids_good[i])
            ids = (
                (int(spans.trace[i]).to_bytes(8, "big"), int(spans.span[i]).to_bytes(8, "big"), parent) if good else ()
            )
            found.append((
                good, ids, int(spans.start_ns[i]), int(spans.end_ns[i]), spans.names[spans.name[i]], bool(spans.failed[i]),
                {k: repr(float(v[i])) for k, v in spans.numbers.items() if not math.isnan(v[i])},
                {k: v[i] for k, v in spans.texts.items() if v[i]},
            ))  # fmt: skip
    return found


def check(body):
    """Twice, so that the second reading goes by what the first one learned."""
    reader = ExportReader(WANTED, OtlpLimits())
    try:
        expected = by_protobuf(body)
    except DecodeError:
        expected = None
    for _ in range(2):
        try:
            found = by_us(reader, body)
        except OtlpError:
            found = None
        if expected is not None:
            assert found is not None, "protobuf reads it"
            assert len(found) == len(expected)
            theirs = sorted((row for row in expected if row[0]), key=repr)
            ours = sorted((row for row in found if row[0]), key=repr)
            if not any(row[1][2] == bytes(8) for row in theirs):  # no parent at all, for us
                assert ours == theirs


def mutated(body, changes):
    """Bytes overwritten, removed, repeated."""
    raw = bytearray(body)
    for where, what, value in changes:
        if not raw:
            break
        at = where % len(raw)
        if what == 0:
            raw[at] = value
        elif what == 1:
            del raw[at : at + value % 9 + 1]
        elif what == 2:
            raw[at:at] = raw[at : at + value]
        else:
            raw[at:at] = bytes([value])
    return bytes(raw)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 3), st.integers(0, 255)), max_size=6)


@given(st.sampled_from(SEEDS), CHANGES)
@settings(max_examples=300, deadline=None)
def test_damaged_exports_are_read_as_protobuf_reads_them_or_refused(body, changes):
    check(mutated(body, changes))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_decoded_or_refused(body):
    for content_type in (PROTO, JSON):
        try:
            assert isinstance(decoder().decode(body, content_type), Decoded)
        except OtlpError:
            continue


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)  # fmt: skip
SPAN_KEYS = ("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "status",
             "attributes", "events", "links", "whatever")  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(SPAN_KEYS), VALUES, max_size=6), max_size=3))
@settings(max_examples=200, deadline=None)
def test_json_of_any_shape_is_decoded_or_refused(spans):
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    try:
        assert isinstance(decoder().decode(body, JSON), Decoded)
    except OtlpError:
        return


@pytest.mark.parametrize(
    "body",
    [
        b'{"resourceSpans": null}', b'{"resourceSpans": [{"scopeSpans": null, "resource": null}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"scope": null, "spans": [{"name": null, "attributes": null}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": "a", "value": null}, {}]}]}]}], "x": 1}',
    ],
)  # fmt: skip
def test_null_is_absent_and_unknown_keys_are_ignored(body):
    assert decoder().decode(body, JSON).spans == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("traceId", "zz" * 16), ("traceId", "ab" * 15), ("traceId", "ab cd " * 5 + "ab"), ("spanId", "ab" * 16), ("spanId", ""),
        ("spanId", "0" * 16), ("parentSpanId", "ab"), ("startTimeUnixNano", "-5"), ("startTimeUnixNano", "1e18"),
        ("endTimeUnixNano", "9" * 40), ("endTimeUnixNano", str(2**64)), ("startTimeUnixNano", -1), ("endTimeUnixNano", "٣"),
    ],
)  # fmt: skip
def test_json_ids_and_times_that_are_none_drop_their_span_and_no_other(key, value):
    good = {
        "traceId": "AB" * 16, "spanId": "cd" * 8, "name": "llm_request", "startTimeUnixNano": str(nanoseconds(0)),
        "endTimeUnixNano": nanoseconds(1), "attributes": [],
    }  # fmt: skip
    spans = [good, good | {key: value}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "vllm"}, "spans": spans}]}]}).encode()
    decoded = decoder().decode(body, JSON)
    assert (len(decoded.spans[0].start), decoded.dropped) == (1, 1)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.3, 1e300, 5e-324, -(2**63), 2**63 - 1, "0.3", True, ["0.3"]],
    ids=str,
)
@pytest.mark.parametrize(
    "attribute", ["gen_ai.latency.time_in_queue", "gen_ai.usage.prompt_tokens", "gen_ai.latency.e2e"]
)
def test_numbers_that_are_none_are_not_known(attribute, value):
    trace = Trace("vllm.tracing.otel")
    trace.span("llm_request", 0, 2.0, VLLM_V1 | {attribute: value}, kind=SERVER)
    found = taken(trace.body)
    assert all(0 <= start <= end <= 2.0 for _, start, end in stages(found))
    tokens = found[0].prompt_tokens
    assert np.isnan(tokens).all() or (tokens >= 0).all()


def test_huge_nested_and_many_attributes_cost_time_in_proportion_and_no_span():
    """A megabyte of text, a thousand levels, ten thousand attributes: stepped over, the span is read."""
    trace = Trace("vllm.tracing.otel")
    trace.span("llm_request", 0, 2.0, VLLM_V1 | {"gen_ai.prompt": "x" * 1_000_000}, kind=SERVER)
    trace.span("llm_request", 0, 2.0, VLLM_V1 | {f"a{i}": i for i in range(10_000)}, kind=SERVER)
    nested = trace.scope.spans[0].attributes.add(key="nested").value
    for _ in range(90):  # protobuf itself writes no deeper
        nested = nested.array_value.values.add()
    nested.int_value = 1
    decoded = decoder().decode(trace.body, PROTO)
    assert len(stages(decoded.spans)) == 12
    deep = b""
    for _ in range(3000):
        deep = b"\x2a" + varint(len(deep) + 1 + len(varint(len(deep)))) + b"\x0a" + varint(len(deep)) + deep
    attribute = b"\x0a\x01k\x12" + varint(len(deep)) + deep
    span = trace.scope.spans[1].SerializeToString() + b"\x4a" + varint(len(attribute)) + attribute
    scope = b"\x12" + varint(len(span)) + span
    body = b"\x12" + varint(len(scope)) + scope
    assert decoder().decode(b"\x0a" + varint(len(body)) + body, PROTO).dropped == 0


def varint(number):
    digits = b""
    while number > 127:
        digits += bytes([number & 127 | 128])
        number >>= 7
    return digits + bytes([number])


@pytest.mark.parametrize(
    "unit",
    [
        b"\x12\x00",
        b"\x12\x02\x4a\x00",
        b"\x12\x04\x4a\x02\x12\x00",
        b"\x12\x02\x5a\x00",
        b"\x08\x01",
        b"\x12\x02\x10\x01",
    ],
    ids=["spans", "attributes", "values", "events", "fields", "wrong-types"],
)
def test_a_million_tiny_things_are_cut_or_refused_within_seconds(unit):
    """Four megabytes, the most that is taken, made of the smallest pieces."""
    scope = unit * (4_000_000 // len(unit))
    body = b"\x12" + varint(len(scope)) + scope
    assert_soon(b"\x0a" + varint(len(body)) + body)


def assert_soon(body):
    """Read without a request in it, or refused for its fields, in less time than an honest export of these bytes."""
    begun = time.process_time()
    try:
        refused = list(decoder().decode(body, PROTO).spans)
    except OtlpError as error:
        refused = [] if "fields" in str(error) else [error]
    assert refused == []
    assert time.process_time() - begun < 10


def test_one_span_made_of_a_million_attributes_is_read_up_to_the_bound():
    span = b"\x4a\x00" * 1_500_000
    scope = b"\x12" + varint(len(span)) + span
    body = b"\x12" + varint(len(scope)) + scope
    assert_soon(b"\x0a" + varint(len(body)) + body)


def test_doubles_and_times_of_any_bits_are_read_as_protobuf_reads_them():
    rng = np.random.default_rng(3)
    trace = Trace("vllm.tracing.otel")
    for _ in range(64):
        bits = int(rng.integers(0, 2**63)) * 2 + 1
        (value,) = struct.unpack("<d", struct.pack("<Q", bits))
        trace.span("llm_request", 0, 1.0, {"gen_ai.latency.e2e": value, "gen_ai.usage.prompt_tokens": bits - 2**63})
        trace.scope.spans[-1].end_time_unix_nano = bits
    check(trace.body)
