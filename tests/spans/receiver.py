"""A real receiver: the agent's OTLP ports, HTTP and gRPC, on the loopback interface, in the test's own loop."""

import http.client
from typing import Any

import anyio.to_thread

from gpuwatch.config import Config, parse
from gpuwatch.server.answers import Desk
from gpuwatch.server.build import grpc_server, span_desk
from gpuwatch.server.http import HttpServer, bind
from gpuwatch.server.routes import otlp_app
from gpuwatch.sources.spans.inbox import SpanInbox
from gpuwatch.wire.grpc.server import GrpcServer
from tests.spans.exports import PROTO, SUBJECT


class Seen:
    """The desk of the HTTP server, which keeps what came."""

    def __init__(self, spans) -> None:
        self.spans = spans
        self.bodies: list[tuple[bytes, str, str]] = []

    def take_traces(self, body: bytes, content_type: str, encoding: str):
        self.bodies.append((body, content_type, encoding))
        return Desk.take_traces(self, body, content_type, encoding)  # type: ignore[arg-type]


class Receiver:
    """`async with Receiver(...)`: both ports answer."""

    def __init__(self, **settings: Any) -> None:
        raw = {"engines": [{"url": "http://127.0.0.1:1", "name": "e"}], "otlp_grpc_listen": "127.0.0.1:0"}
        self.config: Config = parse(raw | settings)
        self.inbox = SpanInbox(SUBJECT, self.config.bounds.spans_waiting)
        self.desk = span_desk(self.config, self.inbox)
        self.seen = Seen(self.desk)
        self.http: HttpServer
        self.grpc: GrpcServer

    async def __aenter__(self):
        app = otlp_app(self.seen, self.config.bounds.otlp_body_bytes)  # type: ignore[arg-type]
        self.http = HttpServer(app, bind("127.0.0.1:0", "otlp_listen"))
        grpc = grpc_server(self.config, self.desk)
        assert grpc is not None
        self.grpc = grpc
        taken = self.grpc.method

        def keep(message: bytes, encoding: str):
            self.seen.bodies.append((message, PROTO, encoding))
            return taken(message, encoding)

        self.grpc.method = keep
        await self.http.start()
        await self.grpc.start()
        return self

    async def __aexit__(self, *_):
        await self.http.stop()
        await self.grpc.stop()
        if self.desk.forwarder is not None:
            await self.desk.forwarder.aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}/v1/traces"

    async def post(self, body: bytes, content_type: str = PROTO, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """One POST, on a thread of its own."""

        def request():
            connection = http.client.HTTPConnection("127.0.0.1", self.http.port, timeout=20)
            try:
                given = {"Content-Type": content_type} | {k.replace("_", "-"): v for k, v in headers.items()}
                connection.request("POST", "/v1/traces", body, given)
                answer = connection.getresponse()
                return answer.status, answer.read(), dict(answer.getheaders())
            finally:
                connection.close()

        return await anyio.to_thread.run_sync(request)

    async def call(self, message: bytes, compression=None, path="") -> tuple[int, bytes, str]:
        """One gRPC call of the official client with bytes as its message: code, answer, details."""
        import grpc

        def request():
            with grpc.insecure_channel(f"127.0.0.1:{self.grpc.port}") as channel:
                method = channel.unary_unary(path or self.grpc.path, None, None)
                try:
                    return 0, method(message, compression=compression, timeout=20), ""
                except grpc.RpcError as error:
                    return error.code().value[0], b"", error.details()

        return await anyio.to_thread.run_sync(request)
