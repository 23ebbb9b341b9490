"""Reads a file of spans: one JSON object a line, or pretty-printed ones one after the other (docs/diagnose.md).

Three forms: an OTLP/JSON export a line (a collector's file exporter), a span a line as OpenTelemetry's own `to_json`
writes it (`context`, `start_time`, ISO times), and the flat form {trace_id, span_id, parent_id, name, start, end,
attributes}. All become OTLP exports and pass through the live decoder. A span is received when it ends: no file says when
it was exported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..model import Batch, Spans, Subject
from ..sources.spans.decoder import SpanDecoder
from ..sources.spans.inbox import complete
from ..sources.spans.trees import SpanTrees
from .times import unix_seconds

MAX_SPANS = 2_000_000
_EXPORT_SPANS = 512
_BLOCK_LINES = 5_000
_SALT = b"spans"
_START = ("start", "start_time", "startTimeUnixNano", "start_time_unix_nano", "start_ns", "start_unix_nano")
_END = ("end", "end_time", "endTimeUnixNano", "end_time_unix_nano", "end_ns", "end_unix_nano")


class SpanFile:
    """What a file of spans held. `foreign` are spans of something else than requests."""

    def __init__(self, engine: str) -> None:
        self.subject = Subject(engine=engine)
        self.items: list[tuple[float, Batch]] = []
        self.unread = 0
        self.foreign = 0
        self.spans = 0
        self._decoder = SpanDecoder(lambda _: self.subject, _SALT)
        self._trees = SpanTrees()

    def read(self, lines: Iterable[bytes]) -> None:
        """Read all lines; what is no span is counted."""
        waiting: list[dict[str, Any]] = []
        for text in objects(lines):
            if self.spans >= MAX_SPANS:
                self.unread += 1
                continue
            one = _decoded(text)
            if one is None:
                self.unread += 1
            elif "resourceSpans" in one or "resource_spans" in one:
                self._export(text if "resourceSpans" in one else msgspec.json.encode(one))
            else:
                waiting.append(one)
            if len(waiting) >= _EXPORT_SPANS:
                self._flat(waiting)
                waiting = []
        if waiting:
            self._flat(waiting)
        self._take(self._trees.take(math.inf))

    def _flat(self, spans: list[dict[str, Any]]) -> None:
        """Flat spans as one export for each resource and scope."""
        groups: dict[bytes, tuple[Any, str, list[dict[str, Any]]]] = {}
        for one in spans:
            span = otlp_span(one)
            if span is None:
                self.unread += 1
                continue
            resource = _resource(one)
            scope = one.get("scope") or one.get("instrumentation_scope") or {}
            name = str(scope.get("name", "") if isinstance(scope, dict) else scope)[:200]
            key = msgspec.json.encode((resource, name))
            groups.setdefault(key, (resource, name, []))[2].append(span)
        for resource, name, found in groups.values():
            scoped = [{"scope": {"name": name}, "spans": found}]
            export = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scoped}]}
            self._export(msgspec.json.encode(export))

    def _export(self, body: bytes) -> None:
        try:
            decoded = self._decoder.decode(body, "application/json")
        except ValueError:
            self.unread += 1
            return
        self.unread += decoded.dropped
        self.foreign += decoded.foreign
        self._take([*decoded.spans, *complete(self._trees, decoded.waiting, decoded.told, 0.0)])

    def _take(self, found: Iterable[Spans]) -> None:
        """Rows that are told; those of scattered trees wait for the end of the file."""
        for spans in found:
            self.spans += len(spans.start)
            self.items += [(at, _batch(self.subject, at, part)) for at, part in by_end(spans)]


def by_end(spans: Spans) -> Iterator[tuple[float, Spans]]:
    """The spans of each second in which they ended, with the time of the last of them."""
    seconds = [math.ceil(end) for end in spans.end.tolist()]
    for second in sorted(set(seconds)):
        rows = [i for i, s in enumerate(seconds) if s == second]
        columns = {
            name: getattr(spans, name)[rows] for name in spans.__struct_fields__ if name not in ("subject", "source")
        }
        yield float(second), Spans(spans.subject, spans.source, **columns)


def objects(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The JSON objects of a file: one a line, or over several lines from a `{` alone to a `}` alone; lists are opened."""
    block: list[bytes] = []
    for line in lines:
        text = line.strip()
        if block and text.startswith(b'{"') and _decoded(text.rstrip(b",")) is not None:
            yield b"".join(block)  # that one has no end
            block = []
        if block:
            block.append(line)
            if line.rstrip() in (b"}", b"},") or len(block) > _BLOCK_LINES:
                yield b"".join(block).strip().rstrip(b",")
                block = []
        elif line.rstrip() == b"{":
            block = [line]
        elif text not in (b"", b"[", b"]"):
            yield text.rstrip(b",")
    if block:
        yield b"".join(block)


def otlp_span(one: dict[str, Any]) -> dict[str, Any] | None:
    """A flat or `to_json` span as OTLP/JSON; None where it has no name or no times."""
    context = one.get("context") if isinstance(one.get("context"), dict) else {}
    start_ns, end_ns = _nanoseconds(one, _START), _nanoseconds(one, _END)
    name = one.get("name")
    if not isinstance(name, str) or start_ns is None or end_ns is None:
        return None
    attributes = one.get("attributes")
    return {
        "traceId": _hex(_first(one, context, "trace_id", "traceId"), 32),
        "spanId": _hex(_first(one, context, "span_id", "spanId"), 16),
        "parentSpanId": _hex(_first(one, {}, "parent_id", "parent_span_id", "parentSpanId"), 16),
        "name": name[:200],
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": _attributes(attributes),
        "status": {"code": 2 if "ERROR" in str(one.get("status", "")).upper() else 0},
    }


def _batch(subject: Subject, at: float, spans: Spans) -> Batch:
    return Batch(f"spans:{subject.engine}", "spans", subject, at, spans=(spans,))


def _decoded(text: bytes) -> dict[str, Any] | None:
    try:
        one = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return one if isinstance(one, dict) else None


def _first(one: dict[str, Any], context: Any, *keys: str) -> Any:
    return next((v for k in keys for v in (one.get(k), context.get(k)) if v), "")


def _hex(value: Any, digits: int) -> str:
    """An id as hex of even length; empty where it is none."""
    text = str(value).lower().removeprefix("0x").replace("-", "")
    try:
        bytes.fromhex(text.zfill(digits))
    except ValueError:
        return ""
    return text.zfill(digits) if text else ""


def _nanoseconds(one: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    value = next((one[k] for k in keys if one.get(k) is not None), None)
    seconds = unix_seconds(str(value)) if value is not None else math.nan
    return None if math.isnan(seconds) else round(seconds * 1e9)


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    """Attributes of either form as OTLP key-value pairs; nested ones are left out."""
    if isinstance(attributes, list):
        return [a for a in attributes if isinstance(a, dict)][:128]
    if not isinstance(attributes, dict):
        return []
    return [{"key": str(k)[:200], "value": value} for k, v in list(attributes.items())[:128] if (value := _value(v))]


def _value(v: Any) -> dict[str, Any]:
    if isinstance(v, bool):
        return {"stringValue": str(v).lower()}
    if isinstance(v, int):
        return {"intValue": str(v)}
    if isinstance(v, float):
        return {"doubleValue": v}
    if isinstance(v, str):
        return {"stringValue": v[:256]}
    if isinstance(v, list):
        return {"arrayValue": {"values": [value for x in v[:8] if (value := _value(x))]}}
    return {}


def _resource(one: dict[str, Any]) -> list[dict[str, Any]]:
    resource = one.get("resource")
    if isinstance(resource, dict):
        return _attributes(resource.get("attributes", resource))
    return []


def summary(file: SpanFile) -> Counter[str]:
    """What could not be used, by reason."""
    return Counter({"lines or spans that could not be read": file.unread, "spans of something else": file.foreign})
