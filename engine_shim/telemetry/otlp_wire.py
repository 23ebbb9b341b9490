"""Finished requests as an OTLP ExportTraceServiceRequest without the SDK: the wire form of a simulated run.

Trace and span ids follow from the request's hash, so that the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..request import Request
from .milestones import stage_spans
from .span_facts import SCOPE, SPAN_NAME, Attribute, nanoseconds, request_attributes, resource_attributes


class OtlpEncoder:
    """Encodes batches of finished requests for one engine."""

    def __init__(self, engine: str, version: str, rank: int, model: str) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self._message = ExportTraceServiceRequest
        self._resource = resource_attributes(engine, version, rank)
        self._model = model

    def encode(self, finished: Iterable[tuple[Request, int]]) -> bytes:
        """One export request with a parent and its stage children for each (request, hash)."""
        message = self._message()
        batch = message.resource_spans.add()
        _fill(batch.resource.attributes, self._resource)
        scope = batch.scope_spans.add()
        scope.scope.name = SCOPE
        for request, request_hash in finished:
            trace_id = request_hash.to_bytes(16, "big")
            parent_id = request_hash.to_bytes(8, "big")
            parent = scope.spans.add(trace_id=trace_id, span_id=parent_id, name=SPAN_NAME, kind=2)
            parent.start_time_unix_nano = nanoseconds(request.arrived_at)
            parent.end_time_unix_nano = nanoseconds(request.finished_at)
            _fill(parent.attributes, request_attributes(request, request_hash, self._model))
            for i, (name, start, end) in enumerate(stage_spans(request), start=1):
                child = scope.spans.add(trace_id=trace_id, parent_span_id=parent_id, name=name, kind=1)
                child.span_id = (request_hash | (i % 0xFFF) << 52).to_bytes(8, "big")
                child.start_time_unix_nano = nanoseconds(start)
                child.end_time_unix_nano = nanoseconds(end)
        return message.SerializeToString()


def _fill(target, attributes: Mapping[str, Attribute]) -> None:
    """Append attributes to a repeated KeyValue field."""
    for key, value in attributes.items():
        row = target.add(key=key).value
        if isinstance(value, str):
            row.string_value = value
        elif isinstance(value, int):
            row.int_value = value
        elif isinstance(value, float):
            row.double_value = value
        else:
            for text in value:
                row.array_value.values.add(string_value=text)
