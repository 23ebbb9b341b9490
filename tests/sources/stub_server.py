"""A real HTTP server whose answers a test decides: slow, broken, cut, endless, gone and back again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Reply:
    """One answer. `wait` holds it back, `send_bytes` cuts it off, `chunks` sends it chunked, `raw` replaces it all."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: int = 0
    framed: bool = True
    send_bytes: int | None = None
    wait: asyncio.Event | None = None
    raw: bytes | None = None


class StubServer:
    """Use as `async with`. `answer` maps a request target to a Reply; `targets` are the requests so far."""

    def __init__(self, answer: Callable[[str], Reply], port: int = 0) -> None:
        self.answer = answer
        self.port = port
        self.targets: list[str] = []
        self.heads: list[str] = []
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head.decode())
                target = head.split(b" ", 2)[1].decode()
                self.targets.append(target)
                if not await self._reply(writer, self.answer(target)):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        """Send; False if the connection is to be closed."""
        if reply.wait is not None:
            await reply.wait.wait()
        raw = reply.raw
        if raw is None:
            headers = dict(reply.headers)
            payload = reply.body
            if reply.chunks:
                headers["Transfer-Encoding"] = "chunked"
                size = max(len(reply.body) // reply.chunks, 1)
                parts = [reply.body[i : i + size] for i in range(0, len(reply.body), size)]
                payload = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            elif reply.framed:
                headers["Content-Length"] = str(len(reply.body))
            lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
            raw = "\r\n".join(lines).encode() + payload
        writer.write(raw if reply.send_bytes is None else raw[: reply.send_bytes])
        await writer.drain()
        return reply.framed and reply.send_bytes is None and reply.raw is None


class HandClock:
    """A clock that a test moves."""

    def __init__(self, t: float = 1_764_000_000.0) -> None:
        self.t = t

    def now(self) -> float:
        return self.t
