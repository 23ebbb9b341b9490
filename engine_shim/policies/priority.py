"""`scheduling = "priority"`: interactive requests before batch ones, with ageing, so that batch work never starves.

One number decides everything, the *rank*: arrival time, plus `ageing_s` for batch work. The smaller rank goes first in
the queue, keeps its KV, and has its prefill computed. So a batch request gives way to interactive ones that arrive up
to `ageing_s` after it, and to none that comes later: that is its bound, and no clock is needed to keep it.

An interactive head that cannot get in displaces batch requests of a higher rank, the youngest first: they are preempted
and go back to their place in the queue. One that has aged is displaced by no newcomer, so it makes progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..request import Request
from .fifo import Fifo
from .waiting import WaitingQueue


class Priority(Fifo):
    """See the module."""

    ranked = True

    def rank(self, request: Request, now: float = 0.0) -> float:
        """Clock seconds; no matter when it is asked."""
        return request.arrived_at + self.settings.ageing_s * request.priority

    def enqueue(self, queue: WaitingQueue, request: Request, need_blocks: int) -> None:
        """By rank."""
        queue.insert(request, need_blocks, self.rank(request))

    def requeue(self, queue: WaitingQueue, request: Request, need_blocks: int) -> None:
        """By rank as well, before equals: what is taken from batch work must not hold up interactive requests."""
        queue.insert(request, need_blocks, math.nextafter(self.rank(request), -math.inf))

    def victim(self, running: Sequence[Request]) -> Request:
        """The highest rank: the youngest of the lowest class that has not aged; of equals the one admitted last."""
        return max(reversed(running), key=self.rank)

    def outranked(self, head: Request, running: Sequence[Request]) -> list[Request]:
        """Requests of a lower class and a higher rank, the highest first; of equals the one admitted last."""
        own = self.rank(head)
        lower = [
            request for request in reversed(running) if request.priority > head.priority and self.rank(request) > own
        ]
        return sorted(lower, key=self.rank, reverse=True)

    def split_prefills(self, prefilling: list[Request], queue: WaitingQueue) -> tuple[list[Request], list[Request]]:
        """By rank; those that the queue's head outranks come after it."""
        ordered = sorted(prefilling, key=self.rank)
        if not queue:
            return ordered, []
        own = self.rank(queue.head)
        first = [request for request in ordered if self.rank(request) <= own]
        return first, ordered[len(first) :]
