"""One request between two threads: the engine's thread puts text in, a handler on the event loop takes it out.

Tokens become text in the engine's thread, where an end token or a stop string ends the request with that very step: its
blocks are free for the next one and the counts are exact. What comes while the client is slow is taken together: a
stream that lags sends larger pieces, not more of them. The buffer is bounded by the request's max_tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.model.tokens import TextStream
from engine_shim.request import Request


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step brought. `finish_reason` is empty while the request goes on."""

    text: str
    tokens: int
    finish_reason: str


class Generation:
    """A request's listener in the engine, and the event loop's view of it.

    `announce` is called in the engine's thread whenever there is something to `collect`.
    """

    def __init__(
        self, request: Request, text: TextStream, eos_token_ids: tuple[int, ...], announce: Callable[[Generation], None]
    ) -> None:
        self.request = request
        request.listener = self
        self._text = text
        self._eos_token_ids = eos_token_ids
        self._announce = announce
        # The engine's thread:
        self._new_text: list[str] = []
        self._new_tokens = 0
        self._ended = ""
        self._stopped = False
        # The event loop's:
        self.output_tokens = 0
        self.finish_reason = ""
        self._ready: list[str] = []
        self._news = asyncio.Event()

    def on_token(self, request: Request, token_id: int) -> None:
        """See request.Listener."""
        self._new_tokens += 1
        if token_id in self._eos_token_ids:
            self._stopped = True
        else:
            self._new_text.append(self._text.add(token_id))
            self._stopped = self._text.stopped
        if self._stopped:
            request.stop_after = request.output_tokens
        self._announce(self)

    def on_finish(self, request: Request) -> None:
        """See request.Listener."""
        self._new_text.append(self._text.flush())
        self._ended = "stop" if self._stopped else request.finish_reason
        self._announce(self)

    def collect(self) -> Progress:
        """Everything since the last call; the engine's thread calls it after a step."""
        progress = Progress("".join(self._new_text), self._new_tokens, self._ended)
        self._new_text, self._new_tokens = [], 0
        return progress

    def put(self, progress: Progress) -> None:
        """Hand over what was collected; the event loop's thread calls it."""
        self.output_tokens += progress.tokens
        self.finish_reason = self.finish_reason or progress.finish_reason
        if progress.text:
            self._ready.append(progress.text)
        self._news.set()

    async def take(self) -> str:
        """Wait for news: the text since the last call. `finish_reason` says whether it was the last."""
        await self._news.wait()
        self._news.clear()
        text = "".join(self._ready)
        self._ready.clear()
        return text
