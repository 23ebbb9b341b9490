"""Spans through the real OTLP exporter into a real HTTP receiver."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from engine_shim.request import Stage
from engine_shim.telemetry import LiveRequests, build_telemetry
from engine_shim.telemetry.otlp_wire import OtlpEncoder
from engine_shim.telemetry.spans import traces_url
from tests.shim.telling import START, Telling, info, ordinary_life


class Receiver:
    """Keeps what is posted to it."""

    def __init__(self, status: int) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Answers every post with the status."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.bodies.append((self.path, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Silent."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Any]:
        """All spans received."""
        found = []
        for _, body in self.bodies:
            message = ExportTraceServiceRequest.FromString(body)
            found += [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]
        return found


@contextmanager
def receiver(status: int = 200) -> Iterator[Receiver]:
    """A receiver that listens."""
    made = Receiver(status)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for row in span.attributes:
        kind = row.value.WhichOneof("value")
        value = getattr(row.value, kind)
        result[row.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return result


def test_one_request_is_one_parent_with_a_child_for_each_stage():
    """After a preemption come a requeue and another prefill; nothing of the text or the id is in any of it."""
    with receiver() as received:
        telemetry = build_telemetry(info(), lambda: START, otlp_endpoint=received.url)
        told = Telling(telemetry)
        request = told.arrive("request-of-alice", START, prompt=100, output=9, tenant="a")
        request.prompt = [104, 105]
        told.enter(request, Stage.PREFILL, START + 1)
        told.prefilled(request, START + 2)
        told.preempt(request, START + 3)
        told.enter(request, Stage.PREFILL, START + 5)
        told.prefilled(request, START + 6)
        told.finish(request, START + 7)
        telemetry.close()
    assert [path for path, _ in received.bodies] == ["/v1/traces"]
    parent, *_ = [s for s in received.spans() if not s.parent_span_id]
    children = [s for s in received.spans() if s.parent_span_id]
    assert parent.name == "llm_request"
    assert (parent.start_time_unix_nano, parent.end_time_unix_nano) == (1000 * 10**9, 1007 * 10**9)
    assert {s.parent_span_id for s in children} == {parent.span_id}
    assert {s.trace_id for s in children} == {parent.trace_id}
    by_start = sorted(children, key=lambda s: s.start_time_unix_nano)
    stages = [(s.name, s.start_time_unix_nano // 10**9, s.end_time_unix_nano // 10**9) for s in by_start]
    assert stages == [
        ("queue", 1000, 1001), ("prefill", 1001, 1002), ("decode", 1002, 1003), ("requeue", 1003, 1005),
        ("prefill", 1005, 1006), ("decode", 1006, 1007),
    ]  # fmt: skip
    facts = attributes(parent)
    assert facts["gen_ai.request.model"] == "7b"
    assert (facts["gen_ai.usage.input_tokens"], facts["gen_ai.usage.output_tokens"]) == (100, 2)
    assert facts["gen_ai.response.finish_reasons"] == ["length"]
    assert facts["gen_ai.latency.time_in_queue"] == pytest.approx(1)
    assert facts["gen_ai.latency.time_to_first_token"] == pytest.approx(2)
    assert facts["gen_ai.latency.e2e"] == pytest.approx(7)
    assert facts["shim.preemptions"] == 1
    assert b"alice" not in received.bodies[0][1]


def test_what_never_happened_is_left_out():
    """A rejected request has no first token and no stages, but a reason."""
    with receiver() as received:
        telemetry = build_telemetry(info(), lambda: START, otlp_endpoint=received.url)
        told = Telling(telemetry)
        request = told.arrive("x", START)
        request.stages.clear()
        request.stage = Stage.RECEIVED
        request.rejected_for = "deadline"
        told.finish(request, START, "rejected")
        telemetry.close()
    (span,) = received.spans()
    facts = attributes(span)
    assert facts["gen_ai.response.finish_reasons"] == ["rejected"]
    assert facts["shim.rejected_for"] == "deadline"
    assert not {"gen_ai.latency.time_to_first_token", "gen_ai.latency.time_in_queue"} & facts.keys()


def test_what_could_not_be_sent_is_counted(caplog: pytest.LogCaptureFixture):
    with receiver(status=400) as received:
        telemetry = build_telemetry(info(), lambda: START, otlp_endpoint=received.url)
        ordinary_life(Telling(telemetry))
        telemetry.close()
    page = telemetry.render(["shim:trace_spans_total"]).decode()
    assert 'shim:trace_spans_total{result="failed"} 4' in page
    assert 'shim:trace_spans_total{result="sent"} 0' in page


def test_spans_are_off_unless_somebody_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert traces_url(None) is None
    assert traces_url("") is None
    assert traces_url("http://x:4318/") == "http://x:4318/v1/traces"
    assert traces_url("http://x:4318/v1/traces") == "http://x:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4318")
    assert traces_url(None) == "http://env:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://exact/path")
    assert traces_url(None) == "http://exact/path"


def test_the_wire_form_says_what_the_exporter_says():
    """The SDK-free encoder and the real exporter differ in ids only."""
    with receiver() as received:
        telemetry = build_telemetry(info(), lambda: START, salt=b"s", otlp_endpoint=received.url)
        request = ordinary_life(Telling(telemetry), tenant="t")
        telemetry.close()
    hashed = LiveRequests(b"s").request_hash(request)
    body = OtlpEncoder("shim", "0.1.0", 0, "7b").encode([(request, hashed)])
    message = ExportTraceServiceRequest.FromString(body)
    encoded = list(message.resource_spans[0].scope_spans[0].spans)
    exported = received.spans()

    def facts(span: Any) -> Any:
        times = (span.start_time_unix_nano, span.end_time_unix_nano)
        return span.name, span.kind, *times, bool(span.parent_span_id), attributes(span)

    assert sorted(map(facts, encoded), key=str) == sorted(map(facts, exported), key=str)
    resource = attributes(message.resource_spans[0].resource)
    assert resource["service.name"] == "shim"
    assert len({span.span_id for span in encoded}) == len(encoded)
