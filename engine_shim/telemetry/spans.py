"""OpenTelemetry spans over OTLP/HTTP: one `llm_request` per finished request, with one child per stage it went through.

Spans are made when a request has left, from its recorded stage times, so that the hot path never touches the SDK. The
SDK batches them (500 ms) in a bounded queue and sends from its own thread; what it could not send is counted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..request import Request
from .exposition import Family, by_label
from .info import EngineInfo
from .live import LiveRequests
from .milestones import stage_spans
from .span_facts import SCOPE, SPAN_NAME, nanoseconds, request_attributes, resource_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

BATCH_DELAY_MS = 500
QUEUE_SPANS = 8192
BATCH_SPANS = 512
SEND_TIMEOUT_S = 3.0


def traces_url(endpoint: str | None) -> str | None:
    """The URL to post traces to: from the option, or from OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT; None means off."""
    if endpoint is None:
        exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if exact:
            return exact
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return None
    endpoint = endpoint.rstrip("/")
    return endpoint if endpoint.endswith("/v1/traces") else endpoint + "/v1/traces"


class SpanWriter:
    """The telemetry part that turns finished requests into spans. `close` flushes, for at most a few seconds."""

    def __init__(self, info: EngineInfo, live: LiveRequests, url: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._model = info.model
        self._live = live
        self._in_context = set_span_in_context
        self._kinds = (SpanKind.SERVER, SpanKind.INTERNAL)
        self._made = 0
        self._sent = _CountingExporter(OTLPSpanExporter(endpoint=url, timeout=SEND_TIMEOUT_S))
        resource = Resource.create(resource_attributes(info.engine, info.version, info.rank))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._sent,
                max_queue_size=QUEUE_SPANS,
                schedule_delay_millis=BATCH_DELAY_MS,
                max_export_batch_size=BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer(SCOPE)

    def finished(self, request: Request) -> None:
        """Make the request's spans; the SDK's thread sends them."""
        attributes = request_attributes(request, self._live.request_hash(request), self._model)
        server, internal = self._kinds
        parent = self._tracer.start_span(
            SPAN_NAME, kind=server, start_time=nanoseconds(request.arrived_at), attributes=attributes
        )
        context = self._in_context(parent)
        stages = stage_spans(request)
        for name, start, end in stages:
            child = self._tracer.start_span(name, context=context, kind=internal, start_time=nanoseconds(start))
            child.end(end_time=nanoseconds(end))
        parent.end(end_time=nanoseconds(request.finished_at))
        self._made += 1 + len(stages)

    def families(self) -> list[Family]:
        """What became of the spans, for the engine's page."""
        return [
            by_label("shim:trace_spans_total", "counter", "Spans made, by what became of them.", "result", self._fate)
        ]

    def close(self) -> None:
        """Send what is queued and stop the SDK's thread."""
        self._provider.shutdown()

    def _fate(self) -> dict[str, float]:
        sent, failed = self._sent.sent, self._sent.failed
        # The SDK's queue drops its oldest when full: more made than it can still hold means that some are gone.
        # Drops below the queue's size show only once the later spans have been sent.
        dropped = max(self._made - sent - failed - QUEUE_SPANS, 0)
        return {"sent": sent, "failed": failed, "dropped": dropped}


class _CountingExporter:
    """Counts what the exporter delivered and what it gave up."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.sent = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = self._inner.export(spans)
        if result.name == "SUCCESS":
            self.sent += len(spans)
        else:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 3000) -> bool:
        """See SpanExporter."""
        return self._inner.force_flush(timeout_millis)
