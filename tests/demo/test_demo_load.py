"""The demo's clients against a real server: open loop, token ids, nothing kept, every outcome counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from gpuwatch.demo.load import Arrival, Load

Answer = Callable[[dict, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


async def against(answer: Answer, arrivals: list[Arrival], seed: int = 1) -> tuple[Load, list[dict]]:
    """Play arrivals against a server that answers so; returns the load and the bodies that came."""
    bodies: list[dict] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(next(line for line in head.splitlines() if line.startswith("Content-Length")).split(":")[1])
        body = json.loads(await reader.readexactly(length))
        bodies.append(body)
        await answer(body, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = Load(f"http://127.0.0.1:{port}", "tiny", arrivals, seed, time.monotonic)
        await asyncio.wait_for(load.play(), 10)
    return load, bodies


async def streamed(body: dict, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b'data: {"choices": []}\n\n' * body["max_tokens"] + b"data: [DONE]\n\n")
    await writer.drain()


def test_requests_are_streams_of_token_ids() -> None:
    """Lengths as scheduled, ids in the vocabulary, the tenant as user; the same seed sends the same."""
    arrivals = [Arrival(0.0, 7, 3, "a"), Arrival(0.01, 5, 2, "b")]
    load, bodies = asyncio.run(against(streamed, arrivals))
    assert load.counts == {"sent": 2, "answered": 2}
    assert [(len(b["prompt"]), b["max_tokens"], b["user"], b["stream"]) for b in bodies] == [
        (7, 3, "a", True),
        (5, 2, "b", True),
    ]
    assert all(isinstance(t, int) for b in bodies for t in b["prompt"])
    assert asyncio.run(against(streamed, arrivals))[1] == bodies


def test_a_shared_prefix_is_shared_within_a_stream_only() -> None:
    """Requests of one stream begin alike; those of another do not."""
    one, other = (lambda s, at: Arrival(at, 20, 1, "", 12, s)), "y"
    _, bodies = asyncio.run(against(streamed, [one("x", 0.0), one("x", 0.01), one(other, 0.02)]))
    first, second, third = (b["prompt"] for b in bodies)
    assert first[:12] == second[:12]
    assert first[12:] != second[12:]
    assert first[:12] != third[:12]


def test_a_slow_engine_does_not_slow_the_clients() -> None:
    """Open loop: while nothing is answered, everything is sent."""
    release = asyncio.Event()
    waiting = 0

    async def stuck(body: dict, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 20:
            release.set()
        await release.wait()
        await streamed(body, writer)

    load, bodies = asyncio.run(against(stuck, [Arrival(0.001 * i, 3, 1) for i in range(20)]))
    assert len(bodies) == 20
    assert load.counts["answered"] == 20


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "refused"),
        (OK + b"data: {}\n\n", "failed"),
        (b"", "failed"),
    ],
    ids=["an error", "cut short", "no answer"],
)
def test_every_outcome_is_counted(raw: bytes, outcome: str) -> None:
    """Refused, failed and answered are told apart."""

    async def answer(body: dict, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    load, _ = asyncio.run(against(answer, [Arrival(0.0, 3, 1)]))
    assert load.counts == {"sent": 1, outcome: 1}


def test_an_engine_that_is_gone_fails_requests_and_not_the_demo() -> None:
    """A refused connection is an outcome."""
    load = Load("http://127.0.0.1:9", "tiny", [Arrival(0.0, 3, 1)], 1, time.monotonic)
    asyncio.run(load.play())
    assert load.counts == {"sent": 1, "failed": 1}


def test_cancelling_drops_every_request() -> None:
    """When the demo ends early, the engine sees its clients go, those that wait for an answer too."""

    async def run() -> tuple[Load, bytes]:
        asked, gone = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            rest = await reader.read()  # the end of the request, and then of the connection
            writer.close()
            gone.set_result(rest)

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            load = Load(url, "tiny", [Arrival(0.0, 3, 1), Arrival(60.0, 3, 1)], 1, time.monotonic)
            playing = asyncio.create_task(load.play())
            await asked.wait()
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            return load, await asyncio.wait_for(gone, 10)

    load, rest = asyncio.run(run())
    assert load.counts == {"sent": 1}
    assert rest.endswith(b"}")
