"""What the scheduler needs of a KV pool, and which pool a setting means.

`kv_layout = "paged"` (blocks.py): any free block serves any request. `"contiguous"` (contiguous.py): a request's blocks
lie side by side. Blocks are numbers below `total_blocks`, of `block_tokens` token slots each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from ..request import Request
from ..settings.engine import EngineSettings
from .blocks import BlockPool
from .contiguous import ContiguousPool


class KvPool(Protocol):
    """Hands out blocks and takes them back; see BlockPool and ContiguousPool for what each does with them."""

    interchangeable: bool  # any free block serves any request, so that counting them is enough
    total_blocks: int
    block_tokens: int

    @property
    def held_slots_tokens(self) -> int:
        """Slots over all holders: a block shared by two requests counts twice."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        ...

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold."""
        ...

    @property
    def cached_blocks(self) -> int:
        """Free blocks that still hold a reusable prefix."""
        ...

    @property
    def largest_free_blocks(self) -> int:
        """The most blocks that one new request could be given."""
        ...

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` token slots fill."""
        ...

    def largest_run(self, available_blocks: int) -> int:
        """Of `available_blocks` free ones, how many one new request could be given."""
        ...

    def room_for(self, count: int, held: Sequence[int], available_blocks: int) -> bool:
        """Whether who holds `held` can get `count` blocks beyond those it was promised."""
        ...

    def in_the_way(self, request: Request, running: Sequence[Request]) -> Request | None:
        """Who in particular must give up its KV so that `request` can grow; None if anybody's will do."""
        ...

    def take(self, count: int, held: Sequence[int] = (), promised: int = 0) -> list[int]:
        """`count` more blocks for who holds `held` and has been promised `promised` in all."""
        ...

    def release(self, blocks: Sequence[int]) -> None:
        """Take back all blocks of a request, given in prompt order."""
        ...

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """The blocks that hold the longest known prefix of `keys`."""
        ...

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free now."""
        ...

    def hold(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that `match` found."""
        ...

    def publish(self, block: int, key: Hashable) -> None:
        """Make a full block reusable under `key`."""
        ...


def new_pool(settings: EngineSettings, total_blocks: int) -> KvPool:
    """An empty pool of the layout that the settings ask for."""
    if settings.kv_layout == "contiguous":
        return ContiguousPool(total_blocks, settings.block_tokens)
    limit = int(settings.prefix_cache_ratio * total_blocks)
    return BlockPool(total_blocks, settings.block_tokens, settings.prefix_evict, limit)
