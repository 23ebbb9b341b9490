"""Which idle prefix block is forgotten when blank ones run out: a policy for each value of `prefix_evict`.

Idle blocks are free ones that still hold a known prefix (blocks.py). "lru" forgets the one that was released longest
ago; "fifo" the one that was published first, however often it was used since.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Protocol


class IdleBlocks(Protocol):
    """The idle blocks, in the order in which they would be forgotten."""

    def __len__(self) -> int: ...

    def published(self, block: int) -> None:
        """The block's content became reusable."""
        ...

    def add(self, block: int) -> None:
        """The block was released by its last holder."""
        ...

    def remove(self, block: int) -> None:
        """Somebody holds it again. KeyError if it is not idle."""
        ...

    def pop(self) -> int:
        """The block to forget, which then is not idle any more. KeyError if there is none."""
        ...


class LeastRecentlyUsed:
    """Oldest release first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def published(self, block: int) -> None:
        """See IdleBlocks. When it was published does not matter here."""

    def add(self, block: int) -> None:
        """See IdleBlocks."""
        self._blocks[block] = None

    def remove(self, block: int) -> None:
        """See IdleBlocks."""
        del self._blocks[block]

    def pop(self) -> int:
        """See IdleBlocks."""
        return self._blocks.popitem(last=False)[0]


class FirstInFirstOut:
    """Oldest publication first."""

    def __init__(self) -> None:
        self._publications = 0
        self._published_as: dict[int, int] = {}  # of every published block, idle or held
        self._idle: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []  # a heap of (publication, block); entries of held blocks are stale

    def __len__(self) -> int:
        return len(self._idle)

    def published(self, block: int) -> None:
        """See IdleBlocks."""
        self._publications += 1
        self._published_as[block] = self._publications

    def add(self, block: int) -> None:
        """See IdleBlocks."""
        self._idle[block] = publication = self._published_as[block]
        heappush(self._order, (publication, block))
        if len(self._order) > 2 * len(self._idle) + 64:
            self._order = sorted((publication, block) for block, publication in self._idle.items())

    def remove(self, block: int) -> None:
        """See IdleBlocks."""
        del self._idle[block]

    def pop(self) -> int:
        """See IdleBlocks."""
        while self._order:
            publication, block = heappop(self._order)
            if self._idle.get(block) == publication:
                del self._idle[block]
                return block
        raise KeyError("no block is idle")


POLICIES: dict[str, type[LeastRecentlyUsed | FirstInFirstOut]] = {
    "lru": LeastRecentlyUsed,
    "fifo": FirstInFirstOut,
}
