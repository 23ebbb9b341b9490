"""Replies in degraded mode: one that remembers what it says, and one that says what was remembered.

What is refused at the door gets a CachedReply; what was let in and dropped from the queue at its deadline is a RememberedReply
that has nothing of its own to say.

Both look like reply.Reply to the code that sends them. A reply from the cache bears the header `x-degraded`, so that a
client can tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive

from ..protection.refusal import DEADLINE
from .protocol import ApiError
from .reply import Reply
from .response_cache import KeptAnswer, ResponseCache

DEGRADED_HEADER = (b"x-degraded", b"response-cache")


class RememberedReply(Reply):
    """A reply that is kept once it is complete; one that is cut short is not."""

    def __init__(self, reply: Reply, cache: ResponseCache, key: bytes) -> None:
        super().__init__(reply.generation, reply.abort)
        self._cache, self._key = cache, key
        self._instead: CachedReply | None = None

    @property
    def usage(self) -> tuple[int, int]:
        """See Reply."""
        return super().usage if self._instead is None else self._instead.usage

    @property
    def finish_reason(self) -> str:
        """See Reply."""
        return super().finish_reason if self._instead is None else self._instead.finish_reason

    async def pieces(self) -> AsyncIterator[str]:
        """See Reply."""
        said: list[str] = []
        try:
            async for text in super().pieces():
                said.append(text)
                yield text
        except ApiError as error:
            kept = self._cache.find(self._key) if error.code == DEADLINE else None
            if kept is None:
                raise
            self._instead, self.headers = CachedReply(kept), CachedReply.headers
            async for text in self._instead.pieces():
                yield text
            return
        self._cache.keep(self._key, KeptAnswer("".join(said), self.usage[0], self.finish_reason))


class CachedReply:
    """A kept answer as a reply. It costs the engine nothing."""

    headers: Sequence[tuple[bytes, bytes]] = (DEGRADED_HEADER,)

    def __init__(self, answer: KeptAnswer) -> None:
        self._answer = answer
        self.finish_reason = ""

    @property
    def usage(self) -> tuple[int, int]:
        """Output tokens; no prompt token was found in a KV cache, as nothing was computed."""
        return self._answer.output_tokens, 0

    async def pieces(self) -> AsyncIterator[str]:
        """The text, in one piece."""
        self.finish_reason = self._answer.finish_reason
        if self._answer.text:
            yield self._answer.text

    @asynccontextmanager
    async def while_connected(self, receive: Receive) -> AsyncIterator[None]:
        """There is nothing to abort."""
        yield
