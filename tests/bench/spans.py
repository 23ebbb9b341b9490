"""Reading OTLP spans: the decoder alone, and through a real HTTP server on the loopback interface."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from gpuwatch.model import Subject
from tests.bench.measure import by_turns
from tests.bench.row import Row

SPANS = 512
ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": 0.31, "gen_ai.latency.e2e": 4.2, "gen_ai.latency.time_in_queue": 0.11,
    "gen_ai.latency.time_in_model_prefill": 0.2, "gen_ai.latency.time_in_model_decode": 3.9,
    "gen_ai.usage.prompt_tokens": 812, "gen_ai.usage.completion_tokens": 190, "gen_ai.request.id": "cmpl-0",
}  # fmt: skip


def export() -> bytes:
    """One export of 512 spans of a real engine's shape, eight attributes each."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for i in range(SPANS):
        span = scope.spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name="llm_request", kind=2)
        span.start_time_unix_nano = 1_764_000_000_000_000_000 + i * 10**6
        span.end_time_unix_nano = span.start_time_unix_nano + 4_200_000_000
        for key, value in ATTRIBUTES.items():
            target = span.attributes.add(key=key).value
            if isinstance(value, str):
                target.string_value = f"cmpl-{i}"
            elif isinstance(value, int):
                target.int_value = value
            else:
                target.double_value = value
    return message.SerializeToString()


def naive_decode(body: bytes) -> None:
    """Protobuf and a dictionary for each span."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest.FromString(body)
    for span in message.resource_spans[0].scope_spans[0].spans:
        {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def decoded() -> Row:
    """Bytes to columns, against protobuf with a dictionary for each span."""
    from gpuwatch.sources.spans.decoder import SpanDecoder

    body = export()
    decoder = SpanDecoder(lambda _: Subject(engine="bench"), b"salt")
    assert decoder.decode(body, "application/x-protobuf").dropped == 0

    now, before = by_turns(lambda: decoder.decode(body, "application/x-protobuf"), lambda: naive_decode(body))
    return Row("spans/s", 150_000, SPANS / now, SPANS / before, higher_is_better=True,
        note="eight attributes; the decoder alone, without a server; naive is protobuf and a dict for each span, no columns",
    )  # fmt: skip


def tree() -> Row:
    """The bundled engine's tree: a request and its stages in one export, a row for each span."""
    from engine_shim.request import Request, Stage
    from engine_shim.telemetry.otlp_wire import OtlpEncoder
    from gpuwatch.sources.spans.decoder import SpanDecoder

    finished = []
    for i in range(SPANS // 4):
        at = 1_764_000_000.0 + i
        request = Request(f"r{i}", 40, 20, at, 20, output_tokens=20)
        request.stages = [
            (Stage.QUEUE, at, at + 1.0),
            (Stage.PREFILL, at + 1.0, at + 1.5),
            (Stage.DECODE, at + 1.5, at + 2.0),
        ]
        request.finished_at, request.first_token_at, request.last_token_at = at + 2.0, at + 1.5, at + 2.0
        finished.append((request, i + 1))
    body = OtlpEncoder("shim", "0.1.0", 0, "tiny").encode(finished)
    decoder = SpanDecoder(lambda _: Subject(engine="bench"), b"salt")
    assert sum(len(spans.start) for spans in decoder.decode(body, "application/x-protobuf").spans) == SPANS
    now, before = by_turns(lambda: decoder.decode(body, "application/x-protobuf"), lambda: naive_decode(body))
    return Row("spans/s", 150_000, SPANS / now, SPANS / before, higher_is_better=True,
        note="a root and three stages a request, linked by their ids; naive as above",
    )  # fmt: skip


def through_http() -> Row:
    """Over the loopback interface into the agent's HTTP receiver, CPU of the receiver's process alone."""
    with receiver("ours") as ours, receiver("naive") as naive:
        now, before = rates(ours.process, ours.post), rates(naive.process, naive.post)
    return Row("spans/s", 150_000, now, before, higher_is_better=True,
        note=f"512 spans a request, stage times out; naive is the same server with protobuf and dicts; {floor()}",
    )  # fmt: skip


def through_grpc() -> Row:
    """As above, over gRPC with the official client."""
    with receiver("ours") as ours:
        now = rates(ours.process, ours.call)
    return Row(
        "spans/s", 100_000, now, higher_is_better=True, note=f"as above, from the official gRPC client; {floor()}"
    )


def floor() -> str:
    """What decoding alone reaches in this run."""
    row = decoded()
    return f"decoding alone {row.now:,.0f} in this run"


class Receiver:
    """A receiver in another process, and one connection to it."""

    def __init__(self, process: psutil.Process, http_port: int, grpc_port: int) -> None:
        import grpc

        from gpuwatch.wire.grpc import EXPORT_TRACES

        self.process = process
        self._body = export()
        self._http = http.client.HTTPConnection("127.0.0.1", http_port)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._method = self._channel.unary_unary(EXPORT_TRACES, None, None)

    def post(self) -> None:
        """One export over HTTP."""
        self._http.request("POST", "/v1/traces", self._body, {"Content-Type": "application/x-protobuf"})
        answer = self._http.getresponse()
        assert (answer.status, answer.read()) == (200, b"")

    def call(self) -> None:
        """One export over gRPC."""
        assert self._method(self._body, timeout=20) == b""

    def close(self) -> None:
        """Close both connections."""
        self._http.close()
        self._channel.close()


@contextmanager
def receiver(kind: str) -> Iterator[Receiver]:
    """A receiver of spans in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.span_server", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        connected = Receiver(psutil.Process(server.pid), *map(int, server.stdout.readline().split()))
        try:
            yield connected
        finally:
            connected.close()
            server.stdin.close()


def rates(process: psutil.Process, send: Callable[[], None], exports: int = 150, rounds: int = 5) -> float:
    """Median spans a second of the receiver's CPU."""
    for _ in range(20):
        send()
    found = []
    for _ in range(rounds):
        begun = sum(process.cpu_times()[:2])
        for _ in range(exports):
            send()
        found.append(exports * SPANS / max(sum(process.cpu_times()[:2]) - begun, 1e-3))
    return statistics.median(found)
