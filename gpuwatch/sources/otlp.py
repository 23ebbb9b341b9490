"""Decodes an OTLP ExportTraceServiceRequest (protobuf or JSON, plain or gzip) into the few attributes that matter.

Bounded before anything is built: body, inflated body, spans. Garbage is an OtlpError with a reason that a server can
answer with 400. Only numbers and a handful of known strings are looked at; no other attribute text leaves this module.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

NUMBERS = {
    "gen_ai.latency.time_to_first_token": "ttft_s",
    "gen_ai.latency.e2e": "e2e_s",
    "gen_ai.latency.time_in_queue": "queue_s",
    "gen_ai.latency.time_in_model_prefill": "prefill_s",
    "gen_ai.latency.time_in_model_decode": "decode_s",
    "gen_ai.usage.prompt_tokens": "prompt_tokens",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cached_tokens": "cached_tokens",
}
"""Numeric span attributes and what they are called here."""

TEXTS = {"gen_ai.request.id": "request_id", "gen_ai.response.finish_reasons": "outcome", "error.type": "error"}
"""Text attributes that are looked at: hashed or matched against a fixed set, never kept."""

_RESOURCE = frozenset({"service.name", "service.instance.id", "shim.rank"})
_TEXT_CHARS = 256


class OtlpError(ValueError):
    """A body that is no trace export, or too large to be read."""


class OtlpLimits(msgspec.Struct, frozen=True):
    """What one export may be at most; further spans are dropped and counted."""

    body_bytes: int = 16 * 1024 * 1024
    spans: int = 50_000


class RawSpan(msgspec.Struct):
    """One span as it came. Times are unix nanoseconds, ids are bytes. Names in `numbers` and `texts` are those above."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start_ns: int
    end_ns: int
    failed: bool
    numbers: dict[str, float]
    texts: dict[str, str]


class Scope(msgspec.Struct, frozen=True):
    """Spans of one instrumentation scope of one resource."""

    resource: dict[str, str]
    scope: str
    spans: list[RawSpan]


def read_export(
    body: bytes, content_type: str, encoding: str = "", limits: OtlpLimits | None = None
) -> tuple[list[Scope], int]:
    """The spans of an export and how many were cut. OtlpError for anything else; never another error."""
    limits = limits or OtlpLimits()
    if len(body) > limits.body_bytes:
        raise OtlpError(f"body of {len(body)} bytes; at most {limits.body_bytes} are read")
    if encoding and encoding.lower() != "identity":
        body = _inflate(body, encoding, limits.body_bytes)
    kind = content_type.partition(";")[0].strip().lower()
    read = _READERS.get(kind)
    if read is None:
        raise OtlpError(f"content type {kind[:60]!r}; application/x-protobuf and application/json are read")
    return read(body, limits.spans)


def _inflate(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding.lower() != "gzip":
        raise OtlpError(f"encoding {encoding[:40]!r}; gzip is read")
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise OtlpError(f"not gzip: {error}") from None
    if len(text) > limit:
        raise OtlpError(f"more than {limit} bytes once inflated")
    if not inflate.eof:
        raise OtlpError("the gzip stream has no end")
    return text


def _read_protobuf(body: bytes, most: int) -> tuple[list[Scope], int]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(body)
    except (DecodeError, RuntimeError) as error:
        raise OtlpError(f"not an ExportTraceServiceRequest: {str(error)[:120]}") from None
    scopes: list[Scope] = []
    cut = 0
    for resource_spans in message.resource_spans:
        resource = {
            a.key: a.value.string_value or str(a.value.int_value)
            for a in resource_spans.resource.attributes
            if a.key in _RESOURCE
        }
        for scope_spans in resource_spans.scope_spans:
            spans = scope_spans.spans
            take = min(len(spans), most)
            most -= take
            cut += len(spans) - take
            kept = spans if take == len(spans) else spans[:take]
            scopes.append(Scope(_short(resource), scope_spans.scope.name[:_TEXT_CHARS], _protobuf_spans(kept)))
    return scopes, cut


def _protobuf_spans(spans: Iterable[Any]) -> list[RawSpan]:
    raw: list[RawSpan] = []
    number_of, text_of = NUMBERS.get, TEXTS.get
    for span in spans:
        numbers: dict[str, float] = {}
        texts: dict[str, str] = {}
        for attribute in span.attributes:
            key = attribute.key
            if name := number_of(key):
                value = attribute.value  # unset fields read as zero: no need to ask which one is set
                numbers[name] = value.double_value or float(value.int_value)
            elif name := text_of(key):
                value = attribute.value
                listed = value.array_value.values
                texts[name] = (listed[0].string_value if listed else value.string_value)[:_TEXT_CHARS]
        raw.append(
            RawSpan(
                span.trace_id, span.span_id, span.parent_span_id, span.name,
                span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2, numbers, texts,
            )
        )  # fmt: skip
    return raw


class _Value(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    int_value: str | int | None = None
    double_value: float | str | None = None
    array_value: _Array | None = None

    def number(self) -> float:
        """The number that is set (64-bit integers come as text); NaN for anything else."""
        said = self.double_value if self.double_value is not None else self.int_value
        try:
            return math.nan if said is None else float(said)
        except ValueError:
            return math.nan

    def text(self) -> str:
        """The text that is set, the first of a list, or an integer as text."""
        if self.array_value is not None:
            return self.array_value.values[0].text() if self.array_value.values else ""
        said = self.string_value if self.string_value is not None else self.int_value
        return "" if said is None else str(said)[:_TEXT_CHARS]


class _Array(msgspec.Struct):
    values: list[_Value] = []


class _Attribute(msgspec.Struct):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Status(msgspec.Struct):
    code: int | str = 0


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] = []
    status: _Status = msgspec.field(default_factory=_Status)


class _Scope(msgspec.Struct):
    name: str = ""


class _ScopeSpans(msgspec.Struct):
    scope: _Scope = msgspec.field(default_factory=_Scope)
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []


class _Export(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


def _read_json(body: bytes, most: int) -> tuple[list[Scope], int]:
    try:
        export = msgspec.json.decode(body, type=_Export)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OtlpError(f"not an ExportTraceServiceRequest: {str(error)[:120]}") from None
    scopes: list[Scope] = []
    cut = 0
    for resource_spans in export.resource_spans:
        resource = {a.key: a.value.text() for a in resource_spans.resource.attributes if a.key in _RESOURCE}
        for scope_spans in resource_spans.scope_spans:
            kept = scope_spans.spans[:most]
            most -= len(kept)
            cut += len(scope_spans.spans) - len(kept)
            raw: list[RawSpan] = []
            for span in kept:
                one = _json_span(span)
                if one is None:
                    cut += 1
                else:
                    raw.append(one)
            scopes.append(Scope(_short(resource), scope_spans.scope.name[:_TEXT_CHARS], raw))
    return scopes, cut


def _json_span(span: _Span) -> RawSpan | None:
    """None where an id or a time is no number."""
    numbers = {NUMBERS[a.key]: a.value.number() for a in span.attributes if a.key in NUMBERS}
    texts = {TEXTS[a.key]: a.value.text() for a in span.attributes if a.key in TEXTS}
    try:
        return RawSpan(
            bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id), bytes.fromhex(span.parent_span_id), span.name,
            int(span.start_time_unix_nano), int(span.end_time_unix_nano),
            span.status.code in (2, "STATUS_CODE_ERROR"), numbers, texts,
        )  # fmt: skip
    except ValueError:
        return None


def _short(resource: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:_TEXT_CHARS] for key, value in resource.items()}


_READERS: dict[str, Callable[[bytes, int], tuple[list[Scope], int]]] = {
    "application/x-protobuf": _read_protobuf,
    "application/json": _read_json,
}
