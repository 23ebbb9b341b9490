"""Deadlines: what cannot have its first token in time is refused at the door, what has missed it leaves the queue.

A client says how long it waits for the first token. The estimate at the door is the queue ahead ÷ the measured service
rate, times `CAUTION`, plus the time that prefills have lately taken. Work that nobody waits for any more is the worst
load that an overloaded engine can have: it makes the next ones late as well.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count

from ..request import Request, Stage
from .backlog import Backlog
from .refusal import DEADLINE, Refusal, retry_within

CAUTION = 1.25  # the estimate is a mean: without it half of those at the edge would be let in and be late


class Deadlines:
    """Judges requests that have a deadline, and knows which of those that wait have missed it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Request]] = []  # a heap; entries of requests that have started are stale
        self._entries = count()

    def refusal(self, request: Request, backlog: Backlog, now: float) -> Refusal | None:
        """None if it has no deadline, can be in time, or nobody can say."""
        if request.deadline_at == math.inf:
            return None
        wait_s = backlog.expected_wait_s()
        if wait_s is None:
            return None
        late_s = now + CAUTION * wait_s + backlog.rate.prefill_seconds(request.prompt_tokens) - request.deadline_at
        if late_s <= 0:
            return None
        message = f"its first token would come {late_s:.1f} s after its deadline"
        return Refusal(DEADLINE, message, retry_within(late_s))

    def joined(self, request: Request) -> None:
        """It was taken into the queue."""
        if request.deadline_at < math.inf:
            heappush(self._waiting, (request.deadline_at, next(self._entries), request))

    def next_expiry(self) -> float:
        """When the next of those that wait misses its deadline; infinity if none does."""
        while self._waiting and self._waiting[0][2].stage is not Stage.QUEUE:
            heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else math.inf

    def expired(self, now: float) -> list[Request]:
        """Those that wait and have missed their deadlines by now, once each."""
        late = []
        while self.next_expiry() <= now:
            late.append(heappop(self._waiting)[2])
        return late
