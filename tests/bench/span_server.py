"""`python -m tests.bench.span_server ours|naive`: a receiver of spans in a process of its own, for its CPU time.

Prints its ports (HTTP, gRPC) and serves until stdin ends. `ours` is the agent's receiver with a mailbox that is emptied
twice a second; `naive` answers HTTP with protobuf and a dictionary for each span, no columns.
"""

from __future__ import annotations

import asyncio
import sys

from gpuwatch.config import parse
from gpuwatch.model import Subject
from gpuwatch.server.build import grpc_server, span_desk
from gpuwatch.server.http import HttpServer, bind
from gpuwatch.server.routes import otlp_app
from gpuwatch.server.span_intake import SpanDesk
from gpuwatch.sources.spans.inbox import SpanInbox

BODY_BYTES = 4 * 1024 * 1024


class Ours:
    """The agent's desk, as far as spans go."""

    def __init__(self, spans: SpanDesk) -> None:
        self._spans = spans

    def take_traces(self, body: bytes, content_type: str, encoding: str) -> tuple[int, bytes, str]:
        from gpuwatch.server.otlp_status import http_answer

        return http_answer(self._spans.take(body, content_type, encoding), content_type)


class Naive:
    """Protobuf and a dictionary for each span."""

    def take_traces(self, body: bytes, content_type: str, encoding: str) -> tuple[int, bytes, str]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        message = ExportTraceServiceRequest.FromString(body)
        for span in message.resource_spans[0].scope_spans[0].spans:
            {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
        return 200, b"", content_type


async def serve(ours: bool) -> None:
    """Until stdin ends."""
    inbox = SpanInbox(Subject(host="bench"), most_rows=10_000_000)
    config = parse({"engines": [{"url": "http://127.0.0.1:1", "name": "e"}], "otlp_grpc_listen": "127.0.0.1:0"})
    spans = span_desk(config, inbox)
    http = HttpServer(otlp_app(Ours(spans) if ours else Naive(), BODY_BYTES), bind("127.0.0.1:0", "otlp_listen"))  # type: ignore[arg-type]
    grpc = grpc_server(config, spans)
    assert grpc is not None
    await http.start()
    await grpc.start()
    sys.stdout.write(f"{http.port} {grpc.port}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    done = loop.run_in_executor(None, sys.stdin.read)
    now = 0.0
    while not done.done():
        await asyncio.wait([done], timeout=0.5)
        inbox.take(now := now + 0.5)
    await http.stop()
    await grpc.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1] == "ours"))
