"""OTLP/JSON: hex ids, 64-bit integers as text or numbers, enums as numbers or names, lowerCamelCase keys.

Unknown keys are ignored and null is absent, as the protobuf JSON mapping says. A span whose ids or times are none is
kept as a row without them, so that it is counted where every other such span is.
"""

from __future__ import annotations

import math

import msgspec

from .body import OtlpError, OtlpLimits
from .columns import TEXT_BYTES, Export, Scope, SpanColumns, Wanted

_KINDS = {
    "SPAN_KIND_INTERNAL": 1, "SPAN_KIND_SERVER": 2, "SPAN_KIND_CLIENT": 3, "SPAN_KIND_PRODUCER": 4, "SPAN_KIND_CONSUMER": 5,
}  # fmt: skip
_LAST = (1 << 64) - 1
_NAME_CHARS = 256


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
        except (ValueError, OverflowError):
            return math.nan

    def text(self) -> str:
        """The text that is set, the first of a list, or an integer as text."""
        if self.array_value is not None:
            values = self.array_value.values
            return (values[0].string_value or "")[:TEXT_BYTES] if values else ""
        said = self.string_value if self.string_value is not None else self.int_value
        return "" if said is None else str(said)[:TEXT_BYTES]


class _Array(msgspec.Struct):
    values: list[_Value] | None = None


class _Attribute(msgspec.Struct):
    key: str | None = None
    value: _Value | None = None


class _Status(msgspec.Struct):
    code: int | str | None = None


class _Event(msgspec.Struct, rename="camel"):
    time_unix_nano: str | int | None = None
    name: str | None = None


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    kind: int | str | None = None
    start_time_unix_nano: str | int | None = None
    end_time_unix_nano: str | int | None = None
    attributes: list[_Attribute] | None = None
    events: list[_Event] | None = None
    status: _Status | None = None


class _Scope(msgspec.Struct):
    name: str | None = None


class _ScopeSpans(msgspec.Struct):
    scope: _Scope | None = None
    spans: list[_Span] | None = None


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] | None = None


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: _Resource | None = None
    scope_spans: list[_ScopeSpans] | None = None


class _Export(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans] | None = None


_decoder = msgspec.json.Decoder(_Export)


class JsonReader:
    """Reads exports."""

    def __init__(self, wanted: Wanted, limits: OtlpLimits) -> None:
        self._wanted = wanted
        self._limits = limits
        self._numbers = {key.decode(): name for key, name in wanted.numbers.items()}
        self._texts = {key.decode(): name for key, name in wanted.texts.items()}

    def read(self, body: bytes) -> Export:
        """The spans of a body. OtlpError for anything that is no export; never another error."""
        try:
            export = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OtlpError(f"not an ExportTraceServiceRequest: {str(error)[:120]}") from None
        limits = self._limits
        scopes: list[Scope] = []
        left, cut_spans, cut_attributes = limits.spans, 0, 0
        for resource_spans in export.resource_spans or ():
            resource = self._resource(resource_spans.resource)
            for group in resource_spans.scope_spans or ():
                spans = group.spans or []
                kept = spans[:left] if len(scopes) < limits.scopes else []
                left -= len(kept)
                cut_spans += len(spans) - len(kept)
                if kept:
                    name = (group.scope.name or "")[:_NAME_CHARS] if group.scope else ""
                    columns = SpanColumns(len(kept))
                    cut_attributes += sum(self._put(columns, row, span) for row, span in enumerate(kept))
                    scopes.append(Scope(resource, name, columns))
        return Export(scopes, cut_spans, cut_attributes)

    def _resource(self, resource: _Resource | None) -> dict[str, str]:
        attributes = (resource.attributes or ()) if resource else ()
        return {
            a.key: a.value.text() if a.value else ""
            for a in attributes
            if a.key is not None and a.key in self._wanted.resource
        }

    def _put(self, columns: SpanColumns, row: int, span: _Span) -> int:
        """Write one span into its row; how many of its attributes were cut."""
        trace, own = _id(span.trace_id, 16), _id(span.span_id, 8)
        parent = _id(span.parent_span_id, 8) if span.parent_span_id else b""
        if trace is not None and own is not None and parent is not None:
            columns.trace[row], columns.span[row] = int.from_bytes(trace[8:]), int.from_bytes(own)
            columns.parent[row] = int.from_bytes(parent)
            columns.ids_good[row] = any(own)
        columns.start_ns[row], columns.end_ns[row] = _time(span.start_time_unix_nano), _time(span.end_time_unix_nano)
        columns.name[row] = columns.name_code(_utf8(span.name or ""))
        kind = _KINDS.get(span.kind, 0) if isinstance(span.kind, str) else span.kind or 0
        columns.kind[row] = kind if 0 <= kind < 256 else 255
        columns.failed[row] = span.status is not None and span.status.code in (2, "STATUS_CODE_ERROR")
        attributes = span.attributes or []
        for attribute in attributes[: self._limits.attributes]:
            if attribute.value is None or attribute.key is None:
                continue
            if number := self._numbers.get(attribute.key):
                columns.number_column(number)[row] = attribute.value.number()
            if text := self._texts.get(attribute.key):
                columns.text_column(text)[row] = _utf8(attribute.value.text())
        for event in (span.events or [])[:64]:
            if (name := _utf8(event.name or "")) in self._wanted.events:
                columns.events.append((row, name, _time(event.time_unix_nano)))
        return max(0, len(attributes) - self._limits.attributes)


def _id(text: str | None, width: int) -> bytes | None:
    """The bytes of a hex id; None where it is none of that width."""
    if text is None or len(text) != 2 * width:
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return raw if len(raw) == width else None


def _time(said: str | int | None) -> int:
    """Unix nanoseconds; 0 where they are none."""
    if isinstance(said, str):
        said = int(said) if len(said) <= 20 and said.isascii() and said.isdigit() else 0
    return said if said is not None and 0 <= said <= _LAST else 0


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:TEXT_BYTES]
