"""A reply on its way to a client, whole or as events; a client that hangs up takes its request out of the engine.

Both kinds of response are plain ASGI callables. They send the response's head with the first token, so that a request
that the engine refuses still gets a proper status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from starlette.types import Receive, Scope, Send

from engine_shim.http.answers import DONE, Answer, event
from engine_shim.http.generation import Generation, Progress
from engine_shim.http.protocol import ApiError
from engine_shim.http.refused import missed_deadline
from engine_shim.protection.refusal import DEADLINE

EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
Abort = Callable[[str], None]  # takes the request with this id out of the engine; no matter if it is gone


class Speaker(Protocol):
    """A reply, whoever makes it: the engine (Reply) or a cache (degraded.py)."""

    headers: Sequence[tuple[bytes, bytes]]  # beyond those of any reply

    @property
    def usage(self) -> tuple[int, int]:
        """Output tokens, and prompt tokens that the prefix cache had."""
        ...

    @property
    def finish_reason(self) -> str:
        """Empty while the reply goes on."""
        ...

    def pieces(self) -> AsyncIterator[str]:
        """Text as it comes, until `finish_reason` is set; ApiError if there is nothing to say any more."""
        ...

    def while_connected(self, receive: Receive) -> AbstractAsyncContextManager[None]:
        """For as long as the client listens."""
        ...


class Reply:
    """What comes out of one generation, as text."""

    headers: Sequence[tuple[bytes, bytes]] = ()

    def __init__(self, generation: Generation, abort: Abort) -> None:
        self.generation = generation
        self.abort = abort

    @property
    def usage(self) -> tuple[int, int]:
        """Output tokens, and prompt tokens that the prefix cache had."""
        return self.generation.output_tokens, self.generation.request.cached_tokens

    @property
    def finish_reason(self) -> str:
        """Empty while the reply goes on."""
        return self.generation.finish_reason

    async def pieces(self) -> AsyncIterator[str]:
        """Text as it comes, until `finish_reason` is set; ApiError if the engine refuses or drops the request."""
        while not self.finish_reason:
            try:
                text = await self.generation.take()
            except asyncio.CancelledError:  # the server stops, and has waited for its clients long enough
                raise ApiError(503, "The server is shutting down.", code="shutting_down") from None
            if self.finish_reason not in ("", "stop", "length"):
                raise _failure(self.finish_reason, self.generation.request.rejected_for)
            if text:
                yield text

    @asynccontextmanager
    async def while_connected(self, receive: Receive) -> AsyncIterator[None]:
        """Abort the request when the client hangs up, or when the handler ends for any other reason before it."""
        request_id = self.generation.request.id

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.abort(request_id)
            self.generation.put(Progress("", 0, "abort"))  # a hung engine must not keep the handler too

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()
            if not self.finish_reason:
                self.abort(request_id)


def _failure(reason: str, rejected_for: str) -> ApiError:
    if rejected_for == DEADLINE:
        return missed_deadline()
    if reason.startswith("rejected"):
        return ApiError(
            503, "The engine refused the request: its queue is full, or its KV pool too small.", code="rejected"
        )
    if reason == "abort":
        return ApiError(499, "The request was aborted.", code="aborted")
    return ApiError(500, "The engine failed while it worked on the request.", code="engine_error")


class WholeReply:
    """The answer in one piece."""

    def __init__(self, reply: Speaker, answer: Answer) -> None:
        self._reply, self._answer = reply, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect, then send (ASGI)."""
        reply = self._reply
        async with reply.while_connected(receive):
            text = "".join([piece async for piece in reply.pieces()])
        body = self._answer.whole(text, reply.finish_reason, *reply.usage)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class StreamedReply:
    """The answer as server-sent events."""

    def __init__(self, reply: Speaker, answer: Answer) -> None:
        self._reply, self._answer = reply, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events as tokens come (ASGI)."""
        async with self._reply.while_connected(receive):
            begun = False
            async for chunk in self._events():
                if not begun:
                    headers = [*EVENT_STREAM, *self._reply.headers]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    begun = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _events(self) -> AsyncIterator[bytes]:
        """The events; a failure before the first one is raised, a later one becomes the last event."""
        reply, answer = self._reply, self._answer
        head = answer.opening()
        begun = False
        try:
            async for text in reply.pieces():
                yield head + answer.piece(text)
                head, begun = b"", True
        except ApiError as error:
            if not begun:
                raise
            yield event(error.body()) + DONE
            return
        yield head + answer.closing(reply.finish_reason, *reply.usage)
