"""Calls one unary gRPC method with a message as it came: no decoding, no new compression. One call at a time.

Over TCP, TLS, or a socket of this machine.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from .message import GrpcError, Status, decoded_text, framed

log = logging.getLogger(__name__)

_READ_BYTES = 65_536
_MOST_ANSWER_BYTES = 65_536


class GrpcCaller:
    """A connection to one method of one server; opened when needed, closed by any failure."""

    def __init__(
        self, host: str, port: int, path: str, *, tls: bool = False, timeout_s: float = 5.0, socket: str = "",
        answer_bytes: int = _MOST_ANSWER_BYTES,
    ) -> None:  # fmt: skip
        """`socket`: the path of a socket to call instead of `host` and `port`. `answer_bytes`: the longest answer."""
        self.target = f"unix:{socket}" if socket else f"{'grpcs' if tls else 'grpc'}://{host}:{port}"
        self._host, self._port, self._path, self._tls = host, port, path, tls
        self._socket = socket
        self._answer_bytes = answer_bytes
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._h2 = h2.connection.H2Connection()

    async def call(self, message: bytes, encoding: str = "") -> bytes:
        """Send one message, compressed as `encoding` says. Returns the answer's stream, as it came, flag and length first.

        GrpcError with the status that came, or UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._call(framed(message, compressed=bool(encoding)), encoding)
        except GrpcError:
            await self.aclose()
            raise
        except TimeoutError:
            await self.aclose()
            raise GrpcError(Status.DEADLINE_EXCEEDED, f"no answer within {self._timeout_s:g} s") from None
        except (OSError, EOFError, h2.exceptions.H2Error) as error:
            await self.aclose()
            raise GrpcError(Status.UNAVAILABLE, f"{type(error).__name__} {error}".rstrip()) from error

    async def aclose(self) -> None:
        """Close the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            try:
                await streams[1].wait_closed()
            except OSError as error:  # it broke before it was closed
                log.debug("%s: %s", self.target, error)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[1].is_closing():
            context: Any = None
            if self._tls:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["h2"])
            if self._socket:
                self._streams = await asyncio.open_unix_connection(self._socket)
            else:
                self._streams = await asyncio.open_connection(self._host, self._port, ssl=context)
            self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
            self._h2.initiate_connection()
        return self._streams

    async def _call(self, body: bytes, encoding: str) -> bytes:
        _, writer = await self._open()
        stream = self._h2.get_next_available_stream_id()
        authority = "localhost" if self._socket else f"{self._host}:{self._port}"
        headers = [
            (":method", "POST"), (":scheme", "https" if self._tls else "http"), (":path", self._path),
            (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc"),
            ("user-agent", "gpuwatch"),
        ]  # fmt: skip
        if encoding:
            headers.append(("grpc-encoding", encoding))
        self._h2.send_headers(stream, headers)
        answer = _Answer(stream, self._answer_bytes)
        at = 0
        while not answer.ended:
            at = self._send(stream, body, at, answer)
            writer.write(self._h2.data_to_send())
            await writer.drain()
            if not answer.ended:
                await self._read(answer)
        answer.check()
        return bytes(answer.body)

    def _send(self, stream: int, body: bytes, at: int, answer: _Answer) -> int:
        """As much of the body as the windows allow; ends the stream with the last of it."""
        while at < len(body) and not answer.ended:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(body) - at)
            if room <= 0:
                break
            self._h2.send_data(stream, body[at : at + room], end_stream=at + room == len(body))
            at += room
        return at

    async def _read(self, answer: _Answer) -> None:
        reader, _ = await self._open()
        data = await reader.read(_READ_BYTES)
        if not data:
            raise EOFError("the connection was closed")
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            answer.take(event)


class _Answer:
    """What comes back on one stream."""

    def __init__(self, stream: int, most_bytes: int) -> None:
        self.ended = False
        self.body = bytearray()
        self._stream = stream
        self._most_bytes = most_bytes
        self._headers: dict[str, str] = {}

    def take(self, event: h2.events.Event) -> None:
        """Handle one event of the connection."""
        if isinstance(event, h2.events.ConnectionTerminated):
            raise GrpcError(Status.UNAVAILABLE, "the server goes away")
        if getattr(event, "stream_id", None) != self._stream:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self._headers.update({str(name): str(value) for name, value in event.headers})
        elif isinstance(event, h2.events.DataReceived):
            self.body += event.data
            if len(self.body) > self._most_bytes:
                raise GrpcError(Status.INTERNAL, "an answer without end")
        elif isinstance(event, h2.events.StreamReset) and "grpc-status" not in self._headers:
            raise GrpcError(Status.UNAVAILABLE, f"the stream was reset ({int(event.error_code or 0)})")
        if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self.ended = True

    def check(self) -> None:
        """GrpcError unless the call went well."""
        if self._headers.get(":status") != "200":
            raise GrpcError(Status.UNAVAILABLE, f"HTTP status {self._headers.get(':status', 'missing')}")
        code = self._headers.get("grpc-status", "")
        if code != "0":
            status = int(code) if code.isdigit() and len(code) < 4 else Status.UNKNOWN
            raise GrpcError(status, decoded_text(self._headers.get("grpc-message", "")))
