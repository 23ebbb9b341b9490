"""The paged KV cache's book-keeping: which blocks are free, held, shared, or free but still worth reusing.

A block is `block_tokens` token slots of the KV pool, known by its number. It is in exactly one of three states:

- *blank*: free, nothing worth keeping in it;
- *held*: referred to by one or more requests (several only when they share a prefix);
- *idle*: free, but it still holds the KV of a known prefix. It counts as free; when blank blocks run out, the idle
  block that the eviction policy names is forgotten and reused (eviction.py). At most `cached_limit` blocks are idle.

Only full blocks are published for reuse, under a key that stands for the whole prefix up to the block's end
(prefix.py).
Invariants: blank + held + idle = total; a key names at most one block; a held block has at least one reference.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..request import Request
from .eviction import POLICIES, IdleBlocks


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free. The caller checks first: this is a scheduler's bug."""


class BlockPool:
    """Hands out blocks and takes them back. Not thread-safe: it belongs to the thread that steps the engine."""

    interchangeable = True

    def __init__(
        self, total_blocks: int, block_tokens: int, evict: str = "lru", cached_limit: int | None = None
    ) -> None:
        if total_blocks < 1 or block_tokens < 1:
            raise ValueError(f"a pool needs blocks with slots, not {total_blocks} blocks of {block_tokens} tokens")
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.held_slots_tokens = 0  # slots over all holders: a block shared by two requests counts twice
        self._held: set[int] = set()  # by one request each, which nobody shares: not published
        self._references: dict[int, int] = {}  # holders of each published block; 0: it is idle
        self._blank = list(range(total_blocks - 1, -1, -1))  # a stack, so that low numbers go out first
        self._idle: IdleBlocks = POLICIES[evict]()
        self._cached_limit = total_blocks if cached_limit is None else cached_limit
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out now, idle ones included."""
        return len(self._blank) + len(self._idle)

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self.total_blocks - len(self._blank) - len(self._idle)

    @property
    def cached_blocks(self) -> int:
        """Free blocks that still hold a reusable prefix."""
        return len(self._idle)

    @property
    def largest_free_blocks(self) -> int:
        """The most blocks that one request could be given: all free ones, wherever they are."""
        return self.free_blocks

    def largest_run(self, available_blocks: int) -> int:
        """Of `available_blocks` free ones, how many one request could be given: all of them."""
        return available_blocks

    def room_for(self, count: int, held: Sequence[int], available_blocks: int) -> bool:
        """Whether anybody can get `count` blocks beyond those it was promised."""
        return count <= available_blocks

    def in_the_way(self, request: Request, running: Sequence[Request]) -> Request | None:
        """None: whoever gives up blocks, they serve."""
        return None

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` token slots fill."""
        return -(-tokens // self.block_tokens)

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """The blocks that hold the longest known prefix of `keys`. Takes no reference: `hold` does."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free now, so that holding them uses free blocks up."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def hold(self, blocks: Sequence[int]) -> None:
        """Add a reference to published `blocks`, as `match` found them."""
        for block in blocks:
            if not self._references[block]:  # KeyError: not a published block
                self._idle.remove(block)
            self._references[block] += 1
        self.held_slots_tokens += len(blocks) * self.block_tokens

    def take(self, count: int, held: Sequence[int] = (), promised: int = 0) -> list[int]:
        """`count` blocks with nothing in them; forgets idle prefixes if need be. Raises OutOfBlocksError.

        What its owner holds or has been promised already does not matter here.
        """
        if count > self.free_blocks:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.free_blocks} of {self.total_blocks} free")
        while len(self._blank) < count:
            self._forget_one()
        if not count:
            return []
        taken = self._blank[-count:]
        del self._blank[-count:]
        self._held.update(taken)
        self.held_slots_tokens += count * self.block_tokens
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of a request's `blocks`, given in prompt order.

        The last block is released first: a prefix's head is worth more than its tail and is forgotten later.
        """
        own = self._held.intersection(blocks)
        if len(own) == len(blocks):  # nothing is shared: the common case, without a look at each
            self._held -= own
            self._blank.extend(reversed(blocks))
        else:
            for block in reversed(blocks):
                self._release_one(block)
        while len(self._idle) > self._cached_limit:
            self._forget_one()
        self.held_slots_tokens -= len(blocks) * self.block_tokens

    def _release_one(self, block: int) -> None:
        if block in self._held:
            self._held.remove(block)
            self._blank.append(block)
            return
        left = self._references.get(block, 0) - 1
        if left < 0:
            raise ValueError(f"block {block} is released but nobody holds it")
        self._references[block] = left
        if not left:
            self._idle.add(block)

    def publish(self, block: int, key: Hashable) -> None:
        """Make the full, held `block` reusable under `key`. If another block has the key already, that one keeps it."""
        if block not in self._held and not self._references.get(block):
            raise ValueError(f"block {block} is published but nobody holds it")
        if key in self._block_of or block in self._key_of:
            return
        self._held.remove(block)
        self._references[block] = 1
        self._block_of[key] = block
        self._key_of[block] = key
        self._idle.published(block)

    def _forget_one(self) -> None:
        block = self._idle.pop()
        del self._references[block]
        del self._block_of[self._key_of.pop(block)]
        self._blank.append(block)
