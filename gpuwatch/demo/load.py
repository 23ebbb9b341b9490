"""The demo's clients: real streaming HTTP requests at the times of a schedule, whatever the engine does (open loop).

Prompts are token ids out of a seeded generator: no text is made up or kept. Answers are read and thrown away; only
times and outcomes are counted. One connection a request, as from many clients; our own few lines of HTTP keep the load
from taking the core that the engine needs.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

MOST_IN_FLIGHT = 2000
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 3, 250
_DONE = b"data: [DONE]"


class Arrival(msgspec.Struct, frozen=True):
    """One request of a schedule: when (seconds after its start), how long its prompt and its answer are, for whom."""

    at_s: float
    prompt_tokens: int
    max_tokens: int
    tenant: str = ""
    shared_prefix_tokens: int = 0
    stream: str = ""


class Load:
    """Plays a schedule against an engine. `counts`: sent, answered, refused, failed, not_sent."""

    def __init__(self, url: str, model: str, arrivals: Sequence[Arrival], seed: int, now: Callable[[], float]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._model = model
        self._arrivals = arrivals
        self._random = random.Random(seed)
        self._now = now
        self._shared: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()

    async def play(self) -> None:
        """Send every request at its time; ends when the last answer has been read. Cancel it to drop all of them."""
        start = self._now()
        flying: set[asyncio.Task[None]] = set()
        try:
            for arrival in self._arrivals:
                await asyncio.sleep(max(start + arrival.at_s - self._now(), 0.0))
                if len(flying) >= MOST_IN_FLIGHT:
                    self.counts["not_sent"] += 1
                    continue
                task = asyncio.create_task(self._request(arrival))
                flying.add(task)
                task.add_done_callback(flying.discard)
            await asyncio.gather(*flying)
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _request(self, arrival: Arrival) -> None:
        """Send one request and read its answer to the end."""
        self.counts["sent"] += 1
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(self._message(arrival))
                await writer.drain()
                self.counts[await _outcome(reader)] += 1
            finally:
                writer.close()
        except OSError:
            self.counts["failed"] += 1

    def _message(self, arrival: Arrival) -> bytes:
        body = json.dumps(
            {
                "model": self._model,
                "prompt": self._prompt(arrival),
                "max_tokens": arrival.max_tokens,
                "ignore_eos": True,
                "stream": True,
                "user": arrival.tenant,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _prompt(self, arrival: Arrival) -> list[int]:
        """Random token ids, after those that all requests of the stream share."""
        shared = self._shared.setdefault(arrival.stream, [])
        while len(shared) < arrival.shared_prefix_tokens:
            shared.append(self._token())
        own = arrival.prompt_tokens - arrival.shared_prefix_tokens
        return shared[: arrival.shared_prefix_tokens] + [self._token() for _ in range(own)]

    def _token(self) -> int:
        return self._random.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID)


async def _outcome(reader: asyncio.StreamReader) -> str:
    """Read a streamed answer to its end: answered, refused (an HTTP error) or failed (cut short)."""
    status = await reader.readline()
    if b" 200 " not in status:
        return "refused" if status else "failed"
    tail = b""
    while block := await reader.read(65536):
        tail = (tail + block)[-64:]
    return "answered" if _DONE in tail else "failed"
