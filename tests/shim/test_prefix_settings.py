"""What the prefix cache's settings do to hits, and that stretches are fused exactly whatever they are."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine_shim.engine.step_extras import step_fields
from engine_shim.request import Request
from tests.shim.playing import Transcript, make_engine, played, request


def conversations(seed: int) -> Iterator[Request]:
    """One system prompt that most requests share, among others that come once: popular, and old."""
    draw = np.random.default_rng(seed)
    at = 1000.0 + np.add.accumulate(draw.exponential(0.12, 160))
    for number in range(160):
        key = 1 if draw.random() < 0.4 else 1000 + number
        yield request(
            f"r{number}", 400, int(draw.integers(10, 120)), float(at[number]), prefix_key=key, prefix_tokens=320
        )


def run(fuse: bool = True, **table: object) -> Transcript:
    engine = make_engine(kv_pool_tokens=4_000, reserve="none", max_num_seqs=8, **table)
    return played(engine, conversations(4), 30.0, fuse=fuse)


def cached_tokens(told: Transcript) -> float:
    return float(told.columns["cached_tokens_total"][-1])


def test_lru_keeps_what_is_popular_and_fifo_what_is_new() -> None:
    """The shared prompt is old and used again and again: FIFO forgets it, LRU does not."""
    assert cached_tokens(run(prefix_evict="lru")) > 1.1 * cached_tokens(run(prefix_evict="fifo")) > 0


def test_a_smaller_share_of_the_pool_finds_less() -> None:
    """And none at all finds only what requests share at the same time."""
    whole, little, none = (cached_tokens(run(prefix_cache_ratio=share)) for share in (1.0, 0.1, 0.0))
    assert whole >= little >= none
    assert whole > none
    told = run(prefix_cache_ratio=0.1)
    assert told.columns["kv_cached_blocks"].max() == 25


@pytest.mark.parametrize("evict", ["lru", "fifo"])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_fused_and_plain_are_equal(evict: str, share: float) -> None:
    """Idle blocks are forgotten in the same steps."""
    table = {"prefix_evict": evict, "prefix_cache_ratio": share}
    fused, plain = run(fuse=True, **table), run(fuse=False, **table)
    for name in step_fields(make_engine(**table).settings):
        np.testing.assert_array_equal(fused.columns[name], plain.columns[name], err_msg=name)
    assert [(r.id, r.stages, r.cached_tokens) for r in fused.done] == [
        (r.id, r.stages, r.cached_tokens) for r in plain.done
    ]
