"""The block pool: nothing is lost, nothing is given twice, and a prefix hit is really that prefix."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_shim.kv.blocks import BlockPool, OutOfBlocksError
from engine_shim.kv.prefix import block_keys
from tests.shim.playing import request

# Prefix chains over two letters: short enough that requests often share them.
chains = st.text("ab", min_size=1, max_size=5).map(lambda text: [text[: end + 1] for end in range(len(text))])


class BlockPoolMachine(RuleBasedStateMachine):
    """Requests take, share, publish and release blocks; `content` says what is written in a block that was published."""

    @initialize(total=st.integers(1, 12), evict=st.sampled_from(["lru", "fifo"]), limit=st.integers(0, 12))
    def create(self, total: int, evict: str, limit: int) -> None:
        self.pool = BlockPool(total, 16, evict, limit)
        self.limit = limit
        self.holders: list[list[int]] = []
        self.content: dict[int, str] = {}

    def written(self, block: int) -> str | None:
        return self.content.get(block)

    @rule(chain=chains, more=st.integers(0, 4))
    def admit(self, chain: list[str], more: int) -> None:
        """A request reuses what it can, takes the rest, and offers its full blocks."""
        hits = self.pool.match(chain)
        assert [self.written(block) for block in hits] == chain[: len(hits)]
        missing = len(chain) - len(hits) + more
        if missing + self.pool.idle_among(hits) > self.pool.free_blocks:
            return
        self.pool.hold(hits)
        fresh = self.pool.take(missing)
        for block in fresh:
            self.content.pop(block, None)
        blocks = hits + fresh
        assert len(set(blocks)) == len(blocks)
        for block, key in zip(blocks, chain, strict=False):
            if block in fresh and not self.pool.match([key]):
                self.content[block] = key
            self.pool.publish(block, key)
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @rule()
    def ask_for_too_much(self) -> None:
        free = self.pool.free_blocks
        with pytest.raises(OutOfBlocksError):
            self.pool.take(free + 1)
        assert self.pool.free_blocks == free

    @rule(block=st.integers(0, 11))
    def release_what_nobody_holds(self, block: int) -> None:
        if block < self.pool.total_blocks and not any(block in blocks for blocks in self.holders):
            with pytest.raises(ValueError, match="nobody holds it"):
                self.pool.release([block])

    @invariant()
    def blocks_are_conserved(self) -> None:
        held = Counter(block for blocks in self.holders for block in blocks)
        assert self.pool.used_blocks == len(held)
        assert self.pool.free_blocks == self.pool.total_blocks - len(held)
        assert 0 <= self.pool.cached_blocks <= min(self.pool.free_blocks, self.limit)
        assert self.pool.held_slots_tokens == 16 * sum(held.values())

    @invariant()
    def unpublished_blocks_are_not_shared(self) -> None:
        held = Counter(block for blocks in self.holders for block in blocks)
        assert all(count == 1 or block in self.content for block, count in held.items())

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for blocks in self.holders:
                self.pool.release(blocks)
            assert self.pool.free_blocks == self.pool.total_blocks


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


def test_the_prefix_released_longest_ago_is_forgotten_first() -> None:
    """Blank blocks go out first, then idle ones, oldest release first and a prefix's tail before its head."""
    pool = BlockPool(5, 16)
    old, new = pool.take(2), pool.take(2)
    for block, key in zip(old + new, ("old", "old+", "new", "new+"), strict=True):
        pool.publish(block, key)
    pool.release(old)
    pool.release(new)
    pool.take(2)  # the blank one, and one that must be forgotten
    assert len(pool.match(["old", "old+"])) == 1
    assert len(pool.match(["new", "new+"])) == 2
    pool.take(1)
    assert pool.match(["old", "old+"]) == []


def test_under_fifo_the_prefix_published_first_is_forgotten_first() -> None:
    """However often and recently it was used: that is what it costs against LRU."""
    found = {}
    for evict in ("lru", "fifo"):
        pool = BlockPool(2, 16, evict)
        for key in ("first", "second"):
            block = pool.take(1)
            pool.publish(block[0], key)
            pool.release(block)
        hit = pool.match(["first"])
        pool.hold(hit)
        pool.release(hit)
        pool.release(pool.take(1))
        found[evict] = [key for key in ("first", "second") if pool.match([key])]
    assert found == {"lru": ["first"], "fifo": ["second"]}


def test_idle_prefixes_fill_no_more_than_their_share() -> None:
    """Beyond the limit the oldest become blank at once; blocks that somebody holds do not count."""
    pool = BlockPool(6, 16, "lru", cached_limit=2)
    blocks = pool.take(5)
    for index, block in enumerate(blocks):
        pool.publish(block, index)
    assert len(pool.match(range(5))) == 5
    pool.release(blocks)
    assert pool.cached_blocks == 2
    assert pool.match(range(5)) == blocks[:2]
    assert pool.free_blocks == 6


def test_keys_of_real_prompts_depend_on_everything_before_them() -> None:
    """Equal blocks after different beginnings have different keys."""
    one = request("one", [1, 2, 3, 4, 9, 9, 9, 9], 1)
    two = request("two", [5, 2, 3, 4, 9, 9, 9, 9], 1)
    same = request("same", [1, 2, 3, 4, 9, 9, 9, 9, 7], 1)
    keys = [block_keys(r, 2, 4) for r in (one, two, same)]
    assert keys[0] == keys[2]
    assert not set(keys[0]) & set(keys[1])


def test_keys_of_modelled_prompts_cover_the_shared_prefix_only() -> None:
    """Blocks past the prefix are a request's own."""
    modelled = request("m", 100, 1, prefix_key=7, prefix_tokens=40)
    assert block_keys(modelled, 6, 16) == [(7, 0), (7, 1)]
    assert block_keys(modelled, 4, 16, own=True) == [(7, 0), (7, 1), ("m", 2), ("m", 3)]
