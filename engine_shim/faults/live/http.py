"""Faults between the clients and the engine, in real time: a tokenizer, an event loop, and a proxy that do harm.

An ASGI application around the server's own. Only requests for completions meet a slow tokenizer or a lumpy proxy; a
blocked event loop meets everybody, the pages too, as it does in life.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_shim.clock import Clock
from engine_shim.faults import Faults
from engine_shim.request import Request

CHARACTERS_PER_TOKEN = 4  # a prompt is not tokenized yet when its length counts: its body's length stands for it
LOOK_EVERY_S = 0.02


class FaultyFront:
    """Wraps the server's application."""

    def __init__(self, app: ASGIApp, faults: Callable[[], Faults], clock: Clock) -> None:
        self._app, self._faults, self._clock = app, faults, clock
        self._blocker: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with what stands in its way (ASGI)."""
        if self._blocker is None and scope["type"] == "lifespan":
            self._blocker = asyncio.create_task(self._block())
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        now = self._clock.now()
        passed_s = self._faults().passed_at(_sketch(scope, now), now) - now
        if passed_s > 0:
            await asyncio.sleep(passed_s)
        await self._app(scope, receive, _Lumps(send, self._faults, self._clock))

    async def _block(self) -> None:
        """Hold the event loop where a fault says so; nothing else runs on it meanwhile."""
        while True:
            now = self._clock.now()
            blocked_s = self._faults().front_end.opens_at(now) - now
            if blocked_s > 0:
                threading.Event().wait(blocked_s)  # on the loop's own thread: this is the fault
            await asyncio.sleep(LOOK_EVERY_S)


class _Lumps:
    """Sends a stream's pieces together, `every_s` apart, while a lumpy proxy acts."""

    def __init__(self, send: Send, faults: Callable[[], Faults], clock: Clock) -> None:
        self._send, self._faults, self._clock = send, faults, clock
        self._held = b""
        self._flushed_at = -1.0

    async def __call__(self, message: Message) -> None:
        if message["type"] != "http.response.body" or not self._holds(message):
            await self._flush()
            await self._send(message)
            return
        self._held += message["body"]

    def _holds(self, message: dict[str, Any]) -> bool:
        now = self._clock.now()
        acting = [proxy.every_s for proxy in self._faults().proxies if proxy.acts(now)]
        if not acting or not message.get("more_body", False):
            return False
        if self._flushed_at < 0:
            self._flushed_at = now
        if now - self._flushed_at < max(acting):
            return True
        self._flushed_at = now
        return False

    async def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            await self._send({"type": "http.response.body", "body": held, "more_body": True})


def _sketch(scope: Scope, now: float) -> Request:
    """What is known of a request before anybody has read it."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    tokens = int(length) // CHARACTERS_PER_TOKEN if length.isdigit() else 0
    return Request("unread", max(tokens, 1), 1, now, 1)
