"""The waiting queue, which knows at any time how many of its first requests would fit.

Each entry has a *need*: the blocks that its admission would ask for, prefix hits aside. The needs of the first
`WINDOW` entries are kept sorted, so that "how many fit into n free blocks" is one bisection in every step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice

from .request import Request

WINDOW = 256  # entries that are looked at, by `fits` and by requests that pass a blocked head


class WaitingQueue:
    """Requests in order of arrival, except that preempted ones go to the front."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Request, int]] = deque()
        self.window_needs: list[int] = []  # of the first WINDOW entries, ascending

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self._entries)

    @property
    def head(self) -> Request:
        """The first in the queue; IndexError if nobody waits."""
        return self._entries[0][0]

    def window(self) -> Iterator[tuple[int, Request, int]]:
        """Position, request and need of the first WINDOW entries."""
        return ((index, *entry) for index, entry in enumerate(islice(self._entries, WINDOW)))

    def append(self, request: Request, need_blocks: int) -> None:
        """Queue a new request."""
        self._entries.append((request, need_blocks))
        if len(self._entries) <= WINDOW:
            insort(self.window_needs, need_blocks)

    def push_front(self, request: Request, need_blocks: int) -> None:
        """Queue a preempted request before all others."""
        self._entries.appendleft((request, need_blocks))
        insort(self.window_needs, need_blocks)
        if len(self._entries) > WINDOW:
            self._drop_need(self._entries[WINDOW][1])

    def take(self, index: int) -> Request:
        """Remove and return the request at position `index`."""
        request, need_blocks = self._entries[index]
        del self._entries[index]
        if index < WINDOW:
            self._drop_need(need_blocks)
            if len(self._entries) >= WINDOW:
                insort(self.window_needs, self._entries[WINDOW - 1][1])
        return request

    def remove(self, request: Request) -> None:
        """Remove a request wherever it stands; ValueError if it does not wait."""
        for index, entry in enumerate(self._entries):
            if entry[0] is request:
                self.take(index)
                return
        raise ValueError(f"request {request.id} does not wait")

    def fits(self, free_blocks: int) -> int:
        """How many of the first WINDOW requests need at most `free_blocks`, each alone."""
        return bisect_right(self.window_needs, free_blocks)

    def _drop_need(self, need_blocks: int) -> None:
        del self.window_needs[bisect_left(self.window_needs, need_blocks)]
