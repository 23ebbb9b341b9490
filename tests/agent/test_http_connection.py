"""Clients that never finish a request take no place from those that do."""

import asyncio
import contextlib
import socket

import anyio.to_thread
import pytest

from gpuwatch.server import http_connection
from gpuwatch.server.http_connection import MOST_CONNECTIONS
from tests.agent.test_server import Site

pytestmark = pytest.mark.anyio


def half_a_head(port):
    """A client that begins a request and says no more."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    return client


async def test_three_hundred_half_heads_keep_neither_probes_nor_spans_out(tmp_path):
    """The longest waiting gives way: /healthz and OTLP answer, and the connections held stay bounded."""
    async with Site(tmp_path) as site:
        for server in (0, 1):
            port = site.agent.servers[server].port
            with contextlib.ExitStack() as open_:
                for _ in range(300):
                    open_.enter_context(await anyio.to_thread.run_sync(half_a_head, port))
                path, body = ("/healthz", None) if server == 0 else ("/v1/traces", b"")
                kind = {"content_type": "application/x-protobuf"} if server else {}
                status, _ = await site.ask("POST" if server else "GET", path, body, server, **kind)
                assert status == 200
                assert len(site.agent.servers[server]._server.server_state.connections) < MOST_CONNECTIONS


async def test_a_head_that_drips_is_cut_however_often_it_says_something(tmp_path, monkeypatch):
    """Bytes do not renew the wait; only a complete head ends it."""
    monkeypatch.setattr(http_connection, "HEAD_S", 0.3)
    async with Site(tmp_path) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.agent.servers[0].port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        ended = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while not ended.done():
                    writer.write(b"X: y\r\n")
                    await asyncio.wait([ended], timeout=0.05)
        assert ended.done()
        writer.close()
        with contextlib.suppress(ConnectionError):
            assert await ended == b""


async def test_requests_on_one_connection_each_get_their_time(tmp_path, monkeypatch):
    """A connection in use lives on, also with two requests sent at once; an idle one ends."""
    monkeypatch.setattr(http_connection, "HEAD_S", 0.5)
    async with Site(tmp_path) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.agent.servers[0].port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        for _ in range(2):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(3) == b"ok\n"
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
