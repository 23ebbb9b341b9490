"""Serves one unary gRPC method on a socket: a message in, a status and a message out. Plain HTTP/2 (no TLS).

Bounded: connections (the longest idle gives way), streams a connection, bytes a message, bytes of all messages under
way, seconds until a message is there. The method itself is a function that does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import msgspec

from .message import PREFIX_BYTES, GrpcError, Status, encoded_text, framed, unframed

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
MOST_STREAMS = 64
MESSAGE_TIMEOUT_S = 10.0
CLOSE_S = 1.0
_WINDOW_BYTES = 8 * 1024 * 1024
_FRAME_BYTES = 256 * 1024
_MOST_SILENT_BYTES = _FRAME_BYTES + 64 * 1024
"""So many bytes that say nothing are a frame that is too long: h2 collects a frame before it looks at its length."""
_MOST_HEADER_BYTES = 16 * 1024
_GONE = 0x0  # NO_ERROR: nothing more of this stream is wanted
_INTERNAL_ERROR = 0x2


class Answer(msgspec.Struct, frozen=True):
    """How a call ends: `message` goes with OK, `why` with any other status."""

    status: Status = Status.OK
    message: bytes = b""
    why: str = ""


Method = Callable[[bytes, str], Answer]
"""A message as it came and how it is compressed ("" or the name in grpc-encoding)."""


class GrpcServer:
    """One method on one socket. `counts` of calls by their status are in `calls`."""

    def __init__(self, sock: socket.socket, path: str, method: Method, message_bytes: int) -> None:
        self.port: int = sock.getsockname()[1]
        self.path = path
        self.method = method
        self.message_bytes = message_bytes
        self.buffered = 0
        self.connections: dict[Connection, None] = {}  # the longest idle first
        self.calls: dict[int, int] = {}
        self._sock = sock
        self._server: asyncio.Server | None = None

    @property
    def most_buffered(self) -> int:
        """Bytes of all messages under way together."""
        return 4 * self.message_bytes

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.get_running_loop().create_server(lambda: Connection(self), sock=self._sock)

    async def stop(self) -> None:
        """Stop answering and close the socket; calls have no time of their own, so none is cut."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        if self._server is not None:
            async with asyncio.timeout(CLOSE_S):
                await self._server.wait_closed()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more; an idle one makes room."""
        if len(self.connections) >= MOST_CONNECTIONS:
            idle = next((c for c in self.connections if c.is_idle), None)
            if idle is None:
                return False
            idle.close()
            self.connections.pop(idle, None)
        self.connections[connection] = None
        return True

    def touch(self, connection: Connection) -> None:
        """This connection is in use."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None


class _Call:
    """A stream whose message is on its way."""

    __slots__ = ("encoding", "parts", "size", "timer")

    def __init__(self, encoding: str, timer: asyncio.TimerHandle) -> None:
        self.encoding = encoding
        self.timer = timer
        self.parts: list[bytes] = []
        self.size = 0


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self._calls: dict[int, _Call] = {}
        self._silent_bytes = 0
        self._transport: asyncio.Transport | None = None

    @property
    def is_idle(self) -> bool:
        """No message is on its way."""
        return not self._calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what this side can take."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.admit(self):
            transport.close()
            return
        codes = h2.settings.SettingCodes
        settings = {
            codes.MAX_CONCURRENT_STREAMS: MOST_STREAMS, codes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
            codes.MAX_FRAME_SIZE: _FRAME_BYTES, codes.MAX_HEADER_LIST_SIZE: _MOST_HEADER_BYTES,
        }  # fmt: skip
        # In force before they are acknowledged: an exporter sends the acknowledgement and a large frame in one piece, and h2
        # would judge the whole piece by what held before.
        self._h2.local_settings = h2.settings.Settings(client=False, initial_values=settings)
        self._h2.max_inbound_frame_size = _FRAME_BYTES
        self._h2.decoder.max_header_list_size = _MOST_HEADER_BYTES
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Handle what the frames say; a client that breaks the protocol is told and left."""
        self._server.touch(self)
        try:
            events = self._h2.receive_data(data)
            self._silent_bytes = 0 if events else self._silent_bytes + len(data)
            if self._silent_bytes > _MOST_SILENT_BYTES:
                self.close()
                return
            for event in events:
                self._handle(event)
        except (h2.exceptions.H2Error, UnicodeDecodeError, ValueError, KeyError) as error:
            log.debug("a gRPC client breaks the protocol: %s", error)
            self.close()
            return
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was on its way."""
        for stream in list(self._calls):
            self._drop(stream)
        self._server.connections.pop(self, None)

    def close(self) -> None:
        """Say goodbye and close."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._h2.close_connection()
        except h2.exceptions.ProtocolError:
            log.debug("a gRPC client left before the preface")
        self._flush()
        self._transport.close()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._data(event)
        elif isinstance(event, h2.events.RequestReceived):
            self._request(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._ended(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._drop(event.stream_id)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.close()

    def _request(self, event: h2.events.RequestReceived) -> None:
        stream = event.stream_id
        headers = {str(name): str(value) for name, value in event.headers}
        kind = headers.get("content-type", "")
        if headers.get(":method") != "POST" or not kind.startswith("application/grpc") or "grpc-web" in kind:
            self._h2.send_headers(stream, [(":status", "415"), ("content-length", "0")], end_stream=True)
            self._leave(stream, event.stream_ended is not None)
            return
        if headers.get(":path") != self._server.path:
            self._refuse(stream, Status.UNIMPLEMENTED, f"only {self._server.path} is served")
            self._leave(stream, event.stream_ended is not None)
            return
        timer = asyncio.get_running_loop().call_later(MESSAGE_TIMEOUT_S, self._expire, stream)
        self._calls[stream] = _Call(headers.get("grpc-encoding", "").strip().lower(), timer)

    def _data(self, event: h2.events.DataReceived) -> None:
        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        server = self._server
        call.parts.append(event.data)
        call.size += len(event.data)
        server.buffered += len(event.data)
        if call.size > server.message_bytes + PREFIX_BYTES:
            self._end(event.stream_id, Status.RESOURCE_EXHAUSTED, f"a message may have {server.message_bytes} bytes")
        elif server.buffered > server.most_buffered:
            self._end(event.stream_id, Status.UNAVAILABLE, "too many messages are on their way")

    def _ended(self, stream: int) -> None:
        """The message is there: answer it."""
        call = self._calls.get(stream)
        if call is None:
            return
        body, encoding = b"".join(call.parts), call.encoding
        self._drop(stream)
        try:
            message, compression = unframed(body, encoding)
            answer = self._server.method(message, compression)
        except GrpcError as error:
            answer = Answer(Status(error.status), why=error.why)
        except Exception:  # a fault of the method's must not cost the connection
            log.exception("a gRPC call failed")
            answer = Answer(Status.INTERNAL, why="internal error")
        self._answer(stream, answer)

    def _answer(self, stream: int, answer: Answer) -> None:
        if answer.status != Status.OK:
            self._refuse(stream, answer.status, answer.why)
            return
        message = framed(answer.message)
        try:
            if self._h2.local_flow_control_window(stream) < len(message):
                self._h2.reset_stream(stream, _INTERNAL_ERROR)  # a client that has no room for an answer gets none
                return
            self._h2.send_headers(
                stream,
                [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity,gzip")],
            )
            self._h2.send_data(stream, message)
            self._h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            self._count(Status.OK)
        except h2.exceptions.StreamClosedError:
            log.debug("a gRPC client left before its answer")

    def _refuse(self, stream: int, status: Status, why: str) -> None:
        """An answer without a message."""
        self._count(status)
        try:
            self._h2.send_headers(
                stream,
                [
                    (":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity,gzip"),
                    ("grpc-status", str(int(status))), ("grpc-message", encoded_text(why)),
                ],
                end_stream=True,
            )  # fmt: skip
        except h2.exceptions.StreamClosedError:
            log.debug("a gRPC client left before its answer")

    def _end(self, stream: int, status: Status, why: str) -> None:
        """End a call whose message is still on its way."""
        self._drop(stream)
        self._refuse(stream, status, why)
        self._leave(stream, ended=False)

    def _expire(self, stream: int) -> None:
        if stream in self._calls:
            self._end(stream, Status.DEADLINE_EXCEEDED, f"the message did not come within {MESSAGE_TIMEOUT_S:g} s")
            self._flush()

    def _leave(self, stream: int, ended: bool) -> None:
        """Nothing more of this stream is wanted."""
        if not ended:
            try:
                self._h2.reset_stream(stream, _GONE)
            except h2.exceptions.StreamClosedError:
                log.debug("a gRPC client has closed its stream already")

    def _drop(self, stream: int) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.timer.cancel()
            self._server.buffered -= call.size

    def _count(self, status: Status) -> None:
        calls = self._server.calls
        calls[status] = calls.get(status, 0) + 1

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
