"""The waiting queue, which knows at any time how many of its first requests would fit.

Each entry has a *rank*, by which the queue is sorted: requests that are appended have rank 0, preempted ones that go to
the front minus infinity, and an order of service (policies/) inserts with ranks of its own. And it has a *need*: the
blocks that its admission would ask for, prefix hits aside. The needs of the first `WINDOW` entries are kept sorted, so
that "how many fit into n free blocks" is one bisection in every step.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice

from ..request import Request

WINDOW = 256  # entries that are looked at, by `fits` and by requests that pass a blocked head

_Entry = tuple[Request, int, float]  # request, need in blocks, rank


class WaitingQueue:
    """Requests by rank; of equal ranks in the order in which they came."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self.window_needs: list[int] = []  # of the first WINDOW entries, ascending

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _, _ in self._entries)

    @property
    def head(self) -> Request:
        """The first in the queue; IndexError if nobody waits."""
        return self._entries[0][0]

    def at(self, index: int) -> Request:
        """The request at position `index`."""
        return self._entries[index][0]

    def window(self) -> Iterator[tuple[int, Request, int]]:
        """Position, request and need of the first WINDOW entries."""
        return ((index, entry[0], entry[1]) for index, entry in enumerate(islice(self._entries, WINDOW)))

    def count_up_to(self, rank: float) -> int:
        """How many have at most this rank."""
        return bisect_right(self._entries, rank, key=_rank)

    def append(self, request: Request, need_blocks: int) -> None:
        """Queue a new request behind all others, where nobody has a rank above 0."""
        self._entries.append((request, need_blocks, 0.0))
        if len(self._entries) <= WINDOW:
            insort(self.window_needs, need_blocks)

    def push_front(self, request: Request, need_blocks: int) -> None:
        """Queue a preempted request before all others."""
        self._place(0, (request, need_blocks, -math.inf))

    def insert(self, request: Request, need_blocks: int, rank: float) -> None:
        """Queue a request behind all that have at most its rank."""
        self._place(self.count_up_to(rank), (request, need_blocks, rank))

    def take(self, index: int) -> Request:
        """Remove and return the request at position `index`."""
        request, need_blocks, _ = self._entries[index]
        del self._entries[index]
        if index < WINDOW:
            self._drop_need(need_blocks)
            if len(self._entries) >= WINDOW:
                insort(self.window_needs, self._entries[WINDOW - 1][1])
        return request

    def remove(self, request: Request) -> int:
        """Remove a request wherever it stands; returns its need. ValueError if it does not wait."""
        for index, entry in enumerate(self._entries):
            if entry[0] is request:
                self.take(index)
                return entry[1]
        raise ValueError(f"request {request.id} does not wait")

    def fits(self, free_blocks: int) -> int:
        """How many of the first WINDOW requests need at most `free_blocks`, each alone."""
        return bisect_right(self.window_needs, free_blocks)

    def _place(self, index: int, entry: _Entry) -> None:
        self._entries.insert(index, entry)
        if index < WINDOW:
            insort(self.window_needs, entry[1])
            if len(self._entries) > WINDOW:
                self._drop_need(self._entries[WINDOW][1])

    def _drop_need(self, need_blocks: int) -> None:
        del self.window_needs[bisect_left(self.window_needs, need_blocks)]


def _rank(entry: _Entry) -> float:
    return entry[2]
