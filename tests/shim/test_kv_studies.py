"""The KV studies say what the field says: paging keeps more requests, eight bits cost little and show it."""

import pytest
import torch

from engine_shim.model.config import config_of
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import seeded
from engine_shim.studies import kv_layouts, kv_precision


@pytest.fixture(scope="module")
def rows() -> dict[str, kv_layouts.Row]:
    return {name: kv_layouts.measure(name, seconds=90.0, seed=3) for name in kv_layouts.LAYOUTS}


def test_paging_fills_the_pool_with_tokens_and_one_run_for_max_tokens_does_not(rows) -> None:
    """The PagedAttention paper's claim: 20–38 % of the memory holds tokens in systems before it, over 96 % in it."""
    assert rows["paged, growth on demand"].with_tokens > 0.95
    assert rows["contiguous, max_tokens reserved"].with_tokens < 0.40
    assert rows["paged, growth on demand"].running > 3 * rows["contiguous, max_tokens reserved"].running
    assert rows["paged, growth on demand"].tokens_per_s > 2 * rows["contiguous, max_tokens reserved"].tokens_per_s


def test_each_kind_of_waste_belongs_to_its_mechanism(rows) -> None:
    """Reservation is wasted where it is made, external fragmentation only where KV is one run; shares sum to 1."""
    for name, row in rows.items():
        assert row.with_tokens + row.internal + row.reserved + row.external + row.free == pytest.approx(1.0)
        assert (row.external > 0.02) == name.startswith("contiguous"), name
        assert (row.reserved > 0.4) == name.endswith("reserved"), name
    assert (
        rows["contiguous, growth on demand"].preemptions_per_s > 2 * rows["paged, growth on demand"].preemptions_per_s
    )


def test_the_precision_study_prints_what_fewer_bits_cost() -> None:
    """Bytes fall, the distance grows with the loss of precision, and the text's perplexity hardly moves."""
    torch.set_num_threads(1)
    model = seeded(config_of(SHAPES["tiny"]), 0, torch.float32, "cpu")
    exact, half, eight = kv_precision.measure(model, list(range(1, 80)), ("fp32", "fp16", "int8"))
    assert exact.logit_distance == 0
    assert exact.same_choice == 1
    assert 0 < half.logit_distance < eight.logit_distance < 0.02
    assert eight.bytes_per_token < 0.3 * exact.bytes_per_token
    assert abs(eight.perplexity / exact.perplexity - 1) < 0.02
    assert "| int8 | 576 |" in kv_precision.table([exact, half, eight])
