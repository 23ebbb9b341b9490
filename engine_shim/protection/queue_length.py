"""A limit on the queue's length that follows the measured service rate: what is let in waits about `target_s` at most.

By Little's law a queue of n requests waits n ÷ rate seconds, so the limit is target × rate: it grows where requests are
short and shrinks where they are long or the device slows down. Before a rate is known there is no limit.
"""

from __future__ import annotations

import math

from ..request import Request
from .backlog import Backlog
from .refusal import QUEUE_FULL, Refusal, retry_within


class QueueLengthCap:
    """Refuses what would wait behind more than `target_s` seconds of requests."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def limit(self, backlog: Backlog) -> int | None:
        """Requests that may wait beyond the free slots, at least one; None if not known."""
        rate = backlog.rate
        return max(math.ceil(self._target_s * rate.requests_per_s), 1) if rate.known else None

    def refusal(self, request: Request, backlog: Backlog, now: float) -> Refusal | None:
        """None if the queue is short enough."""
        limit = self.limit(backlog)
        if limit is None or backlog.queued < limit:
            return None
        excess_s = (backlog.queued - limit + 1) / max(backlog.rate.requests_per_s, 1e-3)
        message = f"the queue holds more than {self._target_s:g} s of requests at the present service rate"
        return Refusal(QUEUE_FULL, message, retry_within(excess_s))
