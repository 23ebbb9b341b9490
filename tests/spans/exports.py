"""Exports as engines send them, composed: builders of protobuf messages and their JSON, and readers of what came out."""

import itertools
import json

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpuwatch.model import OUTCOMES, STAGES, Subject
from gpuwatch.sources.spans.decoder import SpanDecoder
from gpuwatch.sources.spans.inbox import SpanInbox

T0 = 1_764_000_000
PROTO, JSON = "application/x-protobuf", "application/json"
SUBJECT = Subject(host="h")
SERVER, INTERNAL, CLIENT = 2, 1, 3

_ids = itertools.count(1)


def span_id() -> bytes:
    return next(_ids).to_bytes(8, "big")


def decoder(**settings) -> SpanDecoder:
    return SpanDecoder(lambda resource: Subject(engine=resource.get("service.name", "e")), b"salt", **settings)


class Trace:
    """One scope of one resource; times are seconds after T0."""

    def __init__(self, scope: str, resource: dict | None = None, trace: int = 0) -> None:
        self.message = ExportTraceServiceRequest()
        self.trace = (trace or next(_ids)).to_bytes(16, "big")
        self.open(scope, resource)

    def open(self, scope: str, resource: dict | None = None) -> None:
        batch = self.message.resource_spans.add()
        attributes(batch.resource.attributes, {"service.name": "e"} | (resource or {}))
        self.scope = batch.scope_spans.add()
        self.scope.scope.name = scope

    def span(self, name, start, end, said=None, parent=b"", kind=INTERNAL, events=(), error=False) -> bytes:
        """Add one; its id."""
        span = self.scope.spans.add(trace_id=self.trace, span_id=span_id(), parent_span_id=parent, name=name, kind=kind)
        span.start_time_unix_nano, span.end_time_unix_nano = nanoseconds(start), nanoseconds(end)
        attributes(span.attributes, said or {})
        for event, at in events:
            span.events.add(name=event, time_unix_nano=nanoseconds(at))
        if error:
            span.status.code = 2
        return span.span_id

    @property
    def body(self) -> bytes:
        return self.message.SerializeToString()

    def take_out(self, keep) -> "Trace":
        """The spans for which `keep(span)` holds, in an export of their own; the others stay."""
        other = Trace(self.scope.scope.name)
        other.message.resource_spans[0].resource.CopyFrom(self.message.resource_spans[-1].resource)
        rest = [s for s in self.scope.spans if not keep(s)]
        other.scope.spans.extend(s for s in self.scope.spans if keep(s))
        del self.scope.spans[:]
        self.scope.spans.extend(rest)
        return other


def nanoseconds(seconds: float) -> int:
    return T0 * 10**9 + round(seconds * 1e9)


def attributes(rows, said: dict) -> None:
    for key, value in said.items():
        row = rows.add(key=key).value
        if isinstance(value, bool):
            row.bool_value = value
        elif isinstance(value, str):
            row.string_value = value
        elif isinstance(value, int):
            row.int_value = value
        elif isinstance(value, float):
            row.double_value = value
        else:
            for text in value:
                row.array_value.values.add(string_value=text)


def as_json(message) -> bytes:
    """As exporters write JSON: hex ids, 64-bit integers as text, kinds as numbers."""
    tree = MessageToDict(message)
    for resource, raw_resource in zip(tree["resourceSpans"], message.resource_spans, strict=True):
        for scope, raw_scope in zip(resource["scopeSpans"], raw_resource.scope_spans, strict=True):
            for span, raw in zip(scope.get("spans", []), raw_scope.spans, strict=True):
                span["traceId"], span["spanId"], span["kind"] = raw.trace_id.hex(), raw.span_id.hex(), raw.kind
                if raw.parent_span_id:
                    span["parentSpanId"] = raw.parent_span_id.hex()
    return json.dumps(tree).encode()


def taken(*bodies: bytes, kind: str = PROTO, every_s: float = 0.5, wait_s: float = 15.0, decoder=decoder) -> list:
    """All Spans that come out of an inbox, one body after the other, and after a wait."""
    inbox, reader, at, found = SpanInbox(SUBJECT), decoder(), T0 + 10.0, []
    for body in bodies:
        assert inbox.put(reader.decode(body, kind))
        found += inbox.take(at).spans
        at += every_s
    for _ in range(int(wait_s)):
        at += 1.0
        found += inbox.take(at).spans
    return found


def stages(found) -> list[tuple[str, float, float]]:
    """(stage, start, end) after T0 to the millisecond, in order; the whole first."""
    rows = [
        (STAGES[code], round(start - T0, 3), round(end - T0, 3))
        for spans in found
        for code, start, end in zip(spans.stage, spans.start, spans.end, strict=True)
    ]
    return sorted(rows, key=lambda row: (row[0] != "request", row[1], row[2]))


def seconds(found) -> dict[str, float]:
    """Seconds of each stage, over all of its pieces."""
    total: dict[str, float] = {}
    for stage, start, end in stages(found):
        total[stage] = round(total.get(stage, 0.0) + end - start, 3)
    return total


def outcomes(found) -> list[str]:
    whole = STAGES.index("request")
    return [OUTCOMES[o] for s in found for o, code in zip(s.outcome, s.stage, strict=True) if code == whole]


def requests(found) -> set[int]:
    return {int(r) for spans in found for r in spans.request}
