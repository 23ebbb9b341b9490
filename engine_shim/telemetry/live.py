"""The requests in flight: who waits, who holds KV, and who is the queue's head.

Fed by the stage changes; read by the pages (live gauges), the ring and the world stream (request table). A request's
id never leaves the engine: readers see a salted 52-bit hash, which survives a float64 and a JSON number.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from itertools import chain, islice

from ..request import Request, Stage

HEAD_ROWS = 16  # of the queue, kept in the request table whatever else is cut


class LiveRequests:
    """Requests by what they do. Every operation but `rows` is O(1)."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt[:64]
        self.queued: dict[Request, int] = {}  # request -> hash, in order of arrival
        self.requeued: dict[Request, int] = {}  # preempted: the latest stands first in the queue
        self.holding: dict[Request, int] = {}
        # By what the queue is sorted, where that is not the order of arrival with preempted requests first.
        self.rank: Callable[[Request], float] | None = None
        self.deferred: Callable[[], int] = lambda: 0  # how many wait for something else than KV

    def request_hash(self, request: Request) -> int:
        """The salted hash that stands for the request, 1 ≤ hash < 2^52."""
        for table in (self.holding, self.queued, self.requeued):
            found = table.get(request)
            if found is not None:
                return found
        digest = hashlib.blake2b(request.id.encode(), digest_size=8, key=self._salt).digest()
        return (int.from_bytes(digest, "little") >> 12) or 1

    def stage_changed(self, request: Request, stage: Stage) -> None:
        """Move the request to where its new stage puts it."""
        if stage == Stage.DECODE and request in self.holding:
            return
        hashed = self.request_hash(request)
        self.queued.pop(request, None)
        self.requeued.pop(request, None)
        self.holding.pop(request, None)
        if stage == Stage.QUEUE:
            self.queued[request] = hashed
        elif stage == Stage.REQUEUE:
            self.requeued[request] = hashed
        elif stage in (Stage.PREFILL, Stage.DECODE, Stage.TRANSFER):
            self.holding[request] = hashed

    def finished(self, request: Request) -> None:
        """The request is gone."""
        self.queued.pop(request, None)
        self.requeued.pop(request, None)
        self.holding.pop(request, None)

    def clear(self) -> None:
        """A restart: nothing of the old life is in flight."""
        self.queued.clear()
        self.requeued.clear()
        self.holding.clear()

    @property
    def waiting(self) -> int:
        """Requests without KV, preempted ones included."""
        return len(self.queued) + len(self.requeued)

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        return len(self.holding)

    def head(self) -> Request | None:
        """The first of the queue: by rank, or the latest preempted, else the oldest arrival."""
        if self.rank is not None:
            return min(chain(reversed(self.requeued), self.queued), key=self.rank, default=None)
        if self.requeued:
            return next(reversed(self.requeued))
        return next(iter(self.queued), None)

    def _queue(self) -> Iterator[tuple[Request, int]]:
        """Who waits, in the queue's order."""
        queue = chain(reversed(self.requeued.items()), self.queued.items())
        rank = self.rank
        return queue if rank is None else iter(sorted(queue, key=lambda item: rank(item[0])))

    def rows(self, limit: int) -> list[tuple[Request, int]]:
        """Requests and hashes for a table of `limit` rows.

        All of them where they fit; otherwise the queue's first 16, the largest KV holders, and then more of the queue.
        """
        queue = self._queue()
        if self.waiting + self.running <= limit:
            return [*queue, *self.holding.items()]
        head = list(islice(queue, min(HEAD_ROWS, limit)))
        room = limit - len(head)
        holders = list(self.holding.items())
        if len(holders) > room:
            holders = heapq.nlargest(room, holders, key=lambda item: len(item[0].blocks))
        return [*head, *holders, *islice(queue, room - len(holders))]
