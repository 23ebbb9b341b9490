"""A limit on the prompt tokens that wait, which follows the measured rate: a few long prompts are a long queue too.

As queue_length.py, but counted in prompt tokens: the limit is `target_s` × the prompt tokens per second of the requests
that were served. A request alone in the queue always passes: otherwise a long prompt could never come in.
"""

from __future__ import annotations

import math

from ..request import Request
from .backlog import Backlog
from .refusal import QUEUED_TOKENS, Refusal, retry_within


class QueuedTokensCap:
    """Refuses what would make more than `target_s` seconds of prompt tokens wait."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def limit_tokens(self, backlog: Backlog) -> int | None:
        """Prompt tokens that may wait; None if not known."""
        rate = backlog.rate
        return math.ceil(self._target_s * rate.prompt_tokens_per_s) if rate.known else None

    def refusal(self, request: Request, backlog: Backlog, now: float) -> Refusal | None:
        """None if there is room for its prompt, or it need not wait."""
        limit = self.limit_tokens(backlog)
        tokens = backlog.waiting_tokens + request.prompt_tokens
        if limit is None or not backlog.waiting or backlog.waiting < backlog.free_slots or tokens <= limit:
            return None
        excess_s = (tokens - limit) / max(backlog.rate.prompt_tokens_per_s, 1.0)
        message = f"the queue holds more than {self._target_s:g} s of prompt tokens at the present service rate"
        return Refusal(QUEUED_TOKENS, message, retry_within(excess_s))
