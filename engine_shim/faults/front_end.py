"""Between the client's socket and the engine's queue: one tokenizer thread that is slow, an event loop that is blocked.

A request's way in is the time at which the engine gets it. What it loses here shows nowhere in the scheduler: the queue
is short, the device has time, and the first token is late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..request import Request
from .interval import Window


@dataclass(frozen=True)
class SlowTokenizer(Window):
    """One thread tokenizes, `seconds_per_1k_tokens` of prompt, one request after the other."""

    seconds_per_1k_tokens: float


@dataclass(frozen=True)
class BlockedEventLoop(Window):
    """Something holds the event loop for `block_s`, every `every_s`: nobody comes in, and no token goes out."""

    block_s: float
    every_s: float

    def opens_at(self, now: float) -> float:
        """When the loop next serves anybody: `now`, or the end of the block in which it lies."""
        if not self.acts(now):
            return now
        since_s = (now - self.at) % self.every_s
        return min(now - since_s + self.block_s, self.until) if since_s < self.block_s else now


class FrontEnd:
    """What all faults of the front end together make of a request's way in."""

    def __init__(self, tokenizers: list[SlowTokenizer], loops: list[BlockedEventLoop]) -> None:
        self._tokenizers = tokenizers
        self.loops = loops
        self._free_at = -math.inf
        self._busy_s = 0.0
        self.acts = bool(tokenizers or loops)

    def passed_at(self, request: Request, now: float) -> float:
        """When the engine gets a request that a client sent at `now`; calls come in order of arrival."""
        at = self.opens_at(now)
        for tokenizer in self._tokenizers:
            if tokenizer.acts(at):
                begun = max(at, self._free_at)
                spent_s = tokenizer.seconds_per_1k_tokens * request.prompt_tokens / 1000.0
                self._free_at = begun + spent_s
                self._busy_s += spent_s
                at = self.opens_at(self._free_at)
        return at

    def opens_at(self, now: float) -> float:
        """When the event loop next serves anybody."""
        return max((loop.opens_at(now) for loop in self.loops), default=now)

    def take_busy_s(self) -> float:
        """CPU seconds of tokenizing that were booked since the last question."""
        spent_s, self._busy_s = self._busy_s, 0.0
        return spent_s
