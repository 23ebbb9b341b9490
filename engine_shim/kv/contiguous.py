"""The contiguous KV cache's book-keeping: each request's KV is one run of neighbouring blocks, as before paging.

The pool is a line of `total_blocks` blocks, of which runs and gaps alternate. A run is placed once, in the first gap
that is long enough (first fit), is never moved, and grows only into the gap behind it. Its front part is handed out; the
rest is promised to its owner and to nobody else. What paging does away with is real here: free blocks that lie in
several gaps are no use to a request that needs more than the longest one (external fragmentation).

A run is known by the blocks that its owner holds. Blocks that nobody holds count as free, promised or not, as in the
paged pool; the promised ones are the admission's to count.
Invariants: runs and gaps cover the pool and do not overlap; two gaps never touch; a run's blocks are handed out in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..request import Request
from .blocks import OutOfBlocksError


@dataclass(slots=True)
class Run:
    """Blocks `start` … `start + length − 1`, of which the first `handed` have been given to the owner."""

    start: int
    length: int
    handed: int

    @property
    def end(self) -> int:
        """The first block behind the run."""
        return self.start + self.length


class ContiguousPool:
    """Places runs and takes them back. Not thread-safe: it belongs to the thread that steps the engine."""

    interchangeable = False
    cached_blocks = 0  # a shared prefix would have to lie at the beginning of two runs

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        if total_blocks < 1 or block_tokens < 1:
            raise ValueError(f"a pool needs blocks with slots, not {total_blocks} blocks of {block_tokens} tokens")
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.used_blocks = 0
        self._runs: dict[int, Run] = {}  # by first block
        self._gaps: list[tuple[int, int]] = [(0, total_blocks)]  # (start, length), ascending
        self._largest_gap = total_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, promised ones included."""
        return self.total_blocks - self.used_blocks

    @property
    def held_slots_tokens(self) -> int:
        """Slots of all blocks that are held."""
        return self.used_blocks * self.block_tokens

    @property
    def largest_free_blocks(self) -> int:
        """Length of the longest gap."""
        return self._largest_gap

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` token slots fill."""
        return -(-tokens // self.block_tokens)

    def largest_run(self, available_blocks: int) -> int:
        """The longest new run that can be placed without using more than `available_blocks`."""
        return min(available_blocks, self._largest_gap)

    def room_for(self, count: int, held: Sequence[int], available_blocks: int) -> bool:
        """Whether the owner of `held` can get `count` blocks beyond those it was promised."""
        if not held:
            return count <= self._largest_gap
        return count <= self._gap_at(self._run(held).end)

    def in_the_way(self, request: Request, running: Sequence[Request]) -> Request:
        """Who must give up its KV so that `request` can grow: its neighbour if that came later, else itself."""
        end = self._run(request.blocks).end
        behind = end + self._gap_at(end)
        for other in reversed(running):  # in order of admission
            if other is request or (other.blocks and other.blocks[0] == behind):
                return other
        return request  # the run ends where the pool does

    def take(self, count: int, held: Sequence[int] = (), promised: int = 0) -> list[int]:
        """`count` more blocks for the owner of `held`; a new owner's run is at least `promised` blocks long.

        Raises OutOfBlocksError where no gap is long enough, or somebody else's run lies behind the owner's.
        """
        if not count:
            return []
        run = self._run(held) if held else self._place(max(count, promised))
        missing = run.handed + count - run.length
        if missing > 0:
            if missing > self._gap_at(run.end):
                raise OutOfBlocksError(f"{missing} blocks asked for behind block {run.end - 1}, which are not free")
            self._use(run.end, missing)
            run.length += missing
        first = run.start + run.handed
        run.handed += count
        self.used_blocks += count
        return list(range(first, first + count))

    def release(self, blocks: Sequence[int]) -> None:
        """Take back the run of which an owner holds `blocks`, with what it had been promised."""
        if not blocks:
            return
        run = self._run(blocks)
        if len(blocks) != run.handed:
            raise ValueError(f"{len(blocks)} blocks from block {run.start} are released, but {run.handed} are held")
        del self._runs[run.start]
        self.used_blocks -= run.handed
        self._free(run.start, run.length)

    # -- what a paged pool can do and this one cannot: prefixes are not shared -----------------------------------------

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Nothing is ever found."""
        return []

    def idle_among(self, blocks: Sequence[int]) -> int:
        """None are."""
        return 0

    def hold(self, blocks: Sequence[int]) -> None:
        """ValueError unless `blocks` is empty."""
        if blocks:
            raise ValueError("blocks of a contiguous pool have one owner")

    def publish(self, block: int, key: Hashable) -> None:
        """Nobody could use it."""

    # -- gaps ---------------------------------------------------------------------------------------------------------

    def _run(self, held: Sequence[int]) -> Run:
        run = self._runs.get(held[0])
        if run is None:
            raise ValueError(f"no run begins at block {held[0]}")
        return run

    def _place(self, length: int) -> Run:
        """First fit."""
        for start, room in self._gaps:
            if room >= length:
                self._use(start, length)
                run = self._runs[start] = Run(start, length, 0)
                return run
        free = sum(room for _, room in self._gaps)
        raise OutOfBlocksError(f"a run of {length} blocks asked for; {free} are free, {self._largest_gap} in one piece")

    def _gap_at(self, start: int) -> int:
        """Length of the gap that begins at `start`; 0 if none does."""
        index = bisect_left(self._gaps, (start, 0))
        return self._gaps[index][1] if index < len(self._gaps) and self._gaps[index][0] == start else 0

    def _use(self, start: int, length: int) -> None:
        """Cut `length` blocks off the front of the gap that begins at `start`."""
        index = bisect_left(self._gaps, (start, 0))
        room = self._gaps[index][1]
        self._gaps[index : index + 1] = [(start + length, room - length)] if room > length else []
        self._measure()

    def _free(self, start: int, length: int) -> None:
        """Put a gap back and join it with its neighbours."""
        index = bisect_left(self._gaps, (start, 0))
        first, after = index, index
        end = start + length
        if index and sum(self._gaps[index - 1]) == start:
            first, start = index - 1, self._gaps[index - 1][0]
        if index < len(self._gaps) and self._gaps[index][0] == end:
            after, end = index + 1, sum(self._gaps[index])
        self._gaps[first:after] = [(start, end - start)]
        self._measure()

    def _measure(self) -> None:
        self._largest_gap = max((room for _, room in self._gaps), default=0)
