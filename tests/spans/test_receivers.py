"""The OTLP ports: official exporters over both protocols, and a clear answer to whatever else is sent there."""

import asyncio
import contextlib
import gzip
import json
import socket

import anyio
import anyio.to_thread
import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

import gpuwatch.wire.grpc.server as grpc_server_module
from gpuwatch.config import parse
from gpuwatch.server.build import grpc_address, grpc_server, span_desk
from gpuwatch.sources.spans.inbox import SpanInbox
from gpuwatch.wire.grpc.message import Status, framed
from tests.spans.exports import JSON, PROTO, SERVER, SUBJECT, T0, Trace, as_json, seconds
from tests.spans.receiver import Receiver
from tests.spans.test_dialects import VLLM_V1, vllm

pytestmark = pytest.mark.anyio


def exporter(receiver, protocol, compressed):
    if protocol == "http":
        return HttpExporter(receiver.url, compression=Compression.Gzip if compressed else Compression.NoCompression)
    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    return GrpcExporter(f"127.0.0.1:{receiver.grpc.port}", insecure=True, compression=compression, timeout=10)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_official_exporters_bring_stage_times(protocol, compressed):
    async with Receiver() as receiver:

        def export():
            provider = TracerProvider(resource=Resource.create({"service.name": "e"}), shutdown_on_exit=False)
            provider.add_span_processor(SimpleSpanProcessor(exporter(receiver, protocol, compressed)))
            tracer = provider.get_tracer("vllm.tracing.otel")
            for i in range(3):
                begun = T0 * 10**9 + i
                tracer.start_span("llm_request", kind=SpanKind.SERVER, start_time=begun, attributes=VLLM_V1).end(
                    begun + 2 * 10**9
                )
            provider.shutdown()

        await anyio.to_thread.run_sync(export)
        batch = receiver.inbox.take(T0 + 5.0)
        assert seconds(batch.spans)["queue"] == pytest.approx(0.9)
        assert receiver.desk.counts == {"exports": 3}
        assert [encoding for *_, encoding in receiver.seen.bodies] == ["gzip" if compressed else ""] * 3


async def test_spans_that_make_no_sense_are_a_partial_success():
    """The rest of the export is in; how many were refused, and why, is in the answer."""
    trace = vllm(VLLM_V1)
    for id_ in (b"", b"short", b"\0" * 8):
        trace.scope.spans.add(
            trace_id=b"t" * 16, span_id=id_, name="llm_request", start_time_unix_nano=1, end_time_unix_nano=2
        )
    trace.span("llm_request", 2.0, 1.0)
    words = "3 with ids of a wrong length, 1 with times that are none"
    async with Receiver() as receiver:
        status, answer, _ = await receiver.post(trace.body)
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
        assert (status, partial.rejected_spans, partial.error_message) == (200, 4, words)
        status, answer, headers = await receiver.post(as_json(trace.message), JSON)
        assert json.loads(answer) == {"partialSuccess": {"rejectedSpans": "4", "errorMessage": words}}
        assert headers["content-type"] == JSON
        code, answer, _ = await receiver.call(trace.body)
        assert (code, ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans) == (0, 4)
        assert receiver.inbox.reasons["bad_ids"] == 9
        assert receiver.inbox.take(T0 + 5.0).dropped == 12


BOMB = gzip.compress(b"\0" * 3_000_000)


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "status", "code"),
    [
        (b"\x0a\xff\xff", PROTO, "", 400, Status.INVALID_ARGUMENT),
        (vllm(VLLM_V1).body[:-5], PROTO, "", 400, Status.INVALID_ARGUMENT),
        (b"\x0f", PROTO, "", 400, Status.INVALID_ARGUMENT),
        (b"{]", JSON, "", 400, None),
        (b"<xml/>", "text/xml", "", 415, None),
        (b"", PROTO, "zstd", 415, None),
        (b"not gzip", PROTO, "gzip", 400, Status.INVALID_ARGUMENT),
        (gzip.compress(vllm(VLLM_V1).body)[:-6], PROTO, "gzip", 400, Status.INVALID_ARGUMENT),
        (BOMB, PROTO, "gzip", 413, Status.RESOURCE_EXHAUSTED),
        (b"\0" * 1_100_000, PROTO, "", 413, Status.RESOURCE_EXHAUSTED),
    ],
    ids=["lengths", "half", "wire-type", "json", "xml", "zstd", "no-gzip", "half-gzip", "bomb", "large"],
)  # fmt: skip
async def test_what_is_no_export_gets_a_clear_answer_and_the_next_one_is_taken(
    body, content_type, encoding, status, code
):
    async with Receiver(bounds={"otlp_body_bytes": 1_000_000}) as receiver:
        headers = {"Content_Encoding": encoding} if encoding else {}
        assert (await receiver.post(body, content_type, **headers))[0] == status
        refused = receiver.desk.counts["refused"]
        assert refused or status == 413
        if code is not None:
            answer = await raw_call(receiver, framed(body, compressed=bool(encoding)), encoding)
            assert answer["grpc-status"] == str(int(code))
        assert (await receiver.post(vllm(VLLM_V1).body))[0] == 200
        assert (await receiver.call(vllm(VLLM_V1).body))[0] == 0


async def raw_call(receiver, stream, encoding="", end=True, headers=(), wait=True):
    """Bytes on one gRPC stream; the headers of the answer, or {} where the connection ends first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.grpc.port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    given = {
        ":method": "POST", ":scheme": "http", ":path": receiver.grpc.path, ":authority": "x", "te": "trailers",
        "content-type": "application/grpc",
    } | dict(headers)  # fmt: skip
    if encoding:
        given["grpc-encoding"] = encoding
    connection.send_headers(1, list(given.items()))
    answer: dict[str, str] = {}
    try:
        at = 0
        with anyio.fail_after(15):
            while not answer.get("grpc-status"):
                while at < len(stream) and (room := min(connection.local_flow_control_window(1), 16_384)) > 0:
                    connection.send_data(1, stream[at : at + room])
                    at += room
                if at >= len(stream) and end:
                    connection.end_stream(1)
                    end = False
                writer.write(connection.data_to_send())
                if not wait or not (data := await reader.read(65_536)):
                    break
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                        answer |= {str(k): str(v) for k, v in event.headers}
                    if isinstance(event, h2.events.StreamEnded):
                        return answer
        return answer
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("stream", "encoding", "headers", "answer"),
    [
        (b"", "", {}, Status.INTERNAL),
        (b"\0\0\0", "", {}, Status.INTERNAL),
        (b"\0\0\0\0\x09abc", "", {}, Status.INTERNAL),
        (framed(b"") * 2, "", {}, Status.INTERNAL),
        (b"\7\0\0\0\0", "", {}, Status.INTERNAL),
        (framed(b"x", compressed=True), "", {}, Status.INTERNAL),
        (framed(b"x", compressed=True), "snappy", {}, Status.UNIMPLEMENTED),
        (framed(b""), "gzip", {}, Status.OK),
        (framed(b""), "", {"content-type": "application/grpc+proto"}, Status.OK),
        (framed(b""), "", {":path": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}, Status.UNIMPLEMENTED),
    ],
    ids=["empty", "prefix", "half", "two", "flag", "no-encoding", "snappy", "uncompressed", "subtype", "metrics"],
)  # fmt: skip
async def test_grpc_answers_with_the_status_that_fits(stream, encoding, headers, answer):
    async with Receiver() as receiver:
        assert (await raw_call(receiver, stream, encoding, headers=headers))["grpc-status"] == str(int(answer))
        assert (receiver.grpc.buffered, [c for c in receiver.grpc.connections if not c.is_idle]) == (0, [])


async def test_a_message_that_does_not_end_is_cut_off(monkeypatch):
    """By time where it stops coming, by size where it does not stop."""
    monkeypatch.setattr(grpc_server_module, "MESSAGE_TIMEOUT_S", 0.2)
    async with Receiver(bounds={"otlp_body_bytes": 100_000}) as receiver:
        answer = await raw_call(receiver, b"\0\0\0\0\x09abc", end=False)
        assert answer["grpc-status"] == str(int(Status.DEADLINE_EXCEEDED))
        answer = await raw_call(receiver, b"\0\0\xff\xff\xff" + b"x" * 5_000_000, end=False)
        assert answer["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED))
        assert receiver.grpc.buffered == 0


async def test_a_large_first_batch_that_comes_with_the_acknowledgement_is_taken():
    """An exporter reads the settings, then writes its acknowledgement and one frame of 100 kB in the same piece."""
    async with Receiver() as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.grpc.port)
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        writer.write(client.data_to_send())
        with anyio.fail_after(10):
            while client.max_outbound_frame_size < 100_000:
                client.receive_data(await reader.read(65_536))
            headers = {
                ":method": "POST", ":scheme": "http", ":path": receiver.grpc.path, ":authority": "x", "te": "trailers",
                "content-type": "application/grpc",
            }  # fmt: skip
            client.send_headers(1, list(headers.items()))
            client.send_data(1, framed(b"\x12\xa0\x8d\x06" + bytes(100_000)), end_stream=True)
            writer.write(client.data_to_send())
            said: dict[str, str] = {}
            while "grpc-status" not in said:
                data = await reader.read(65_536)
                assert data, "the server left"
                for event in client.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                        said |= {str(k): str(v) for k, v in event.headers}
        writer.close()
        assert said["grpc-status"] == "0"


async def test_grpc_streams_share_a_connection():
    """Twenty calls at once on one channel of the official client."""
    async with Receiver() as receiver:

        def calls():
            with grpc.insecure_channel(f"127.0.0.1:{receiver.grpc.port}") as channel:
                method = channel.unary_unary(receiver.grpc.path, None, None)
                return [future.result(timeout=20) for future in [method.future(vllm(VLLM_V1).body) for _ in range(20)]]

        assert await anyio.to_thread.run_sync(calls) == [b""] * 20
        assert receiver.grpc.calls == {Status.OK: 20}


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 400_000],
    ids=["http1", "tls", "endless-frame"],
)
async def test_what_is_no_http2_is_left(noise):
    async with Receiver() as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.grpc.port)
        writer.write(noise)
        # What the server has not read when it closes makes its system say "reset" instead of "end".
        with anyio.fail_after(10), contextlib.suppress(ConnectionResetError):
            while await reader.read(1000):
                pass
        writer.close()
        assert (await receiver.call(b""))[0] == 0


async def test_the_longest_idle_connection_gives_way(monkeypatch):
    monkeypatch.setattr(grpc_server_module, "MOST_CONNECTIONS", 3)
    async with Receiver() as receiver:
        open_ = [await asyncio.open_connection("127.0.0.1", receiver.grpc.port) for _ in range(3)]
        assert (await receiver.call(b""))[0] == 0
        with anyio.fail_after(10):
            while await open_[0][0].read(1000):
                pass
        assert len(receiver.grpc.connections) <= 3
        for _, writer in open_:
            writer.close()


async def test_a_full_inbox_asks_to_try_again():
    trace = Trace("vllm.tracing.otel")
    for i in range(60):
        trace.span("llm_request", i, i + 1.0, kind=SERVER)
    async with Receiver(bounds={"spans_waiting": 100}) as receiver:
        assert (await receiver.call(trace.body))[0] == 0
        assert (await receiver.post(trace.body))[0] == 503
        assert (await receiver.call(trace.body))[0] == Status.UNAVAILABLE
        assert receiver.desk.counts == {"exports": 1, "full": 2}
        receiver.inbox.take(T0 + 5.0)
        assert (await receiver.call(trace.body))[0] == 0


def test_grpc_lives_beside_http_unless_told_otherwise():
    def address(**settings):
        return grpc_address(parse(settings))

    assert address() == "127.0.0.1:4317"
    assert address(otlp_listen="[::1]:5000") == "[::1]:4999"
    assert address(otlp_listen="0.0.0.0:0") == "0.0.0.0:0"
    assert address(otlp_grpc_listen="0.0.0.0:9") == "0.0.0.0:9"


def test_without_its_library_or_its_port_the_agent_says_so_and_lives_by_http(monkeypatch, caplog):
    """An address that was asked for and cannot be had is an error of the configuration; the usual one is not."""
    from gpuwatch.config import ConfigError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse({"otlp_listen": f"127.0.0.1:{port + 1}"})
        desk = span_desk(config, SpanInbox(SUBJECT))
        assert grpc_server(config, desk) is None
        assert "no OTLP over gRPC" in caplog.text
        with pytest.raises(ConfigError, match="otlp_grpc_listen"):
            grpc_server(parse({"otlp_grpc_listen": f"127.0.0.1:{port}"}), desk)
    caplog.clear()
    monkeypatch.setitem(__import__("sys").modules, "gpuwatch.wire.grpc.server", None)
    assert grpc_server(parse({"otlp_grpc_listen": "127.0.0.1:0"}), desk) is None
    assert "is not installed" in caplog.text
    assert grpc_server(parse({"otlp_grpc_listen": ""}), desk) is None
