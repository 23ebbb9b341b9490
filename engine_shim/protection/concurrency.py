"""A fixed limit on the requests in the engine, waiting and running: the plainest protection, and one that must be tuned."""

from __future__ import annotations

from ..request import Request
from .backlog import Backlog
from .refusal import CONCURRENCY, Refusal, retry_within


class ConcurrencyCap:
    """Refuses what would make more than `most` requests."""

    def __init__(self, most: int) -> None:
        self._most = most

    def refusal(self, request: Request, backlog: Backlog, now: float) -> Refusal | None:
        """None if there is room."""
        if backlog.in_engine < self._most:
            return None
        rate = backlog.rate
        pause_s = 1.0 / rate.requests_per_s if rate.known and rate.requests_per_s > 0 else 1.0
        return Refusal(CONCURRENCY, f"{self._most} requests are in the engine", retry_within(pause_s))
