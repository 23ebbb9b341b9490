"""KV in fewer bits: what is read is what was written, within the bounds of the type, and the model still agrees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.clock import VirtualClock
from engine_shim.engine.engine import Engine
from engine_shim.model.config import config_of
from engine_shim.model.kv_cache import FP8_MAX, KV_TYPES, FloatStore, Int8Store, head_blocks, head_slots, new_kv_cache
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import seeded
from engine_shim.request import Request
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StepPlan
from tests.shim.playing import Transcript, request, run_all

SHAPE = (6, 2, 4, 8)  # blocks, kv_heads, block_tokens, head_dim
F32 = torch.float32


def round_trip(store: FloatStore | Int8Store, vectors: torch.Tensor) -> torch.Tensor:
    """Write 8 tokens over blocks 5 and 2 and read that sequence back: [8, heads, head_dim]."""
    slots = torch.tensor([20, 21, 22, 23, 8, 9, 10, 11])
    store.write(head_slots(slots, 2, 4), vectors)
    return store.read(head_blocks(torch.tensor([[5, 2]]), 2))[0].transpose(0, 1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(1e-6, 300))
def test_what_is_read_is_what_was_written_within_the_types_bounds(seed: int, size: float) -> None:
    """Exact in its own type; relative 2⁻¹¹ in fp16 and 2⁻⁴ in fp8; half a step of 127 in int8, of the vector's largest."""
    vectors = torch.randn(8, 2, 8, generator=torch.Generator().manual_seed(seed)) * size
    assert torch.equal(round_trip(FloatStore(SHAPE, F32, F32, "cpu"), vectors), vectors)
    inside = vectors.clamp(-FP8_MAX, FP8_MAX)
    for kind, relative, floor in (("fp16", 2**-11, 2**-25), ("bf16", 2**-8, 0.0), ("fp8", 2**-4, 2**-10)):
        error = (round_trip(FloatStore(SHAPE, KV_TYPES[kind], F32, "cpu"), inside) - inside).abs()
        assert bool((error <= inside.abs() * relative + floor).all()), kind
    error = (round_trip(Int8Store(SHAPE, F32, "cpu"), vectors) - vectors).abs()
    assert bool((error <= vectors.abs().amax(dim=-1, keepdim=True) * (0.5 / 127 + 1e-6)).all())


def test_eight_bit_floats_are_cut_and_not_infinite() -> None:
    """fp8 has no infinity to fall back on: what is too large is the largest that there is."""
    read = round_trip(FloatStore(SHAPE, KV_TYPES["fp8"], F32, "cpu"), torch.full((8, 2, 8), -1e6))
    assert bool((read == -FP8_MAX).all())


def test_a_vector_of_zeros_stays_zero() -> None:
    """There is nothing to scale by, and nothing becomes NaN."""
    assert bool((round_trip(Int8Store(SHAPE, F32, "cpu"), torch.zeros(8, 2, 8)) == 0).all())


@pytest.mark.parametrize("kv_type", [*KV_TYPES, "int8"])
def test_the_pool_takes_the_bytes_that_settings_count_with(kv_type: str) -> None:
    """What is allocated is what a modelled engine of this shape would count, scales included."""
    shape = SHAPES["tiny"]
    cache = new_kv_cache(config_of(shape), 10, 16, F32, "cpu", kv_type)
    assert cache.nbytes == 160 * shape.kv_bytes_per_token(kv_type)
    assert cache.kv_type == kv_type


def logits_along(kv_type: str, dtype: torch.dtype = F32) -> torch.Tensor:
    """Logits after each of 48 tokens, which are fed one by one, so that all but the newest come from the cache."""
    torch.set_num_threads(1)
    model = seeded(config_of(SHAPES["tiny"]), 3, dtype, "cpu")
    runner = TorchRunner(model, 4, 16, VirtualClock(), kv_type)
    ids = torch.randint(0, 256, (48,), generator=torch.Generator().manual_seed(1)).tolist()
    request = Request("r", 1, 48, 0.0, 48, prompt=ids[:1], blocks=[2, 0, 3])
    rows = []
    for token in ids[1:]:
        rows.append(runner.logits(StepPlan(prefill=[(request, 1)])))
        request.computed_tokens += 1
        request.prompt.append(token)
        request.prompt_tokens += 1
    return torch.cat(rows)


def test_the_models_answer_moves_little_and_more_with_fewer_bits() -> None:
    """Against fp32: nothing in fp32; below 1 % of the logits' spread in fp16; int8 stays closer than fp8, both below 15 %."""
    exact = logits_along("")
    spread = exact.std()
    assert torch.equal(logits_along("fp32"), exact)
    off = {kind: float((logits_along(kind) - exact).pow(2).mean().sqrt() / spread) for kind in ("fp16", "int8", "fp8")}
    assert 0 < off["fp16"] < off["int8"] < off["fp8"] < 0.15
    assert off["fp16"] < 0.01


def test_a_half_precision_model_reads_an_eight_bit_cache() -> None:
    """What is read has the type that the model computes in."""
    assert logits_along("int8", torch.bfloat16).isfinite().all()


def answers(**table: object) -> tuple[list[list[int]], int]:
    """Greedy answers of eight requests on a small pool, and how often one was preempted."""
    torch.set_num_threads(1)
    settings = EngineSettings.from_table(
        {"kv_pool_tokens": 320, "watermark_ratio": 0.0, "prefix_cache": False, **table}
    )
    clock = VirtualClock(1000.0)
    runner = TorchRunner(seeded(config_of(SHAPES["tiny"]), 3, F32, "cpu"), 20, 16, clock, settings.kv_dtype)
    engine = Engine(settings, 20, runner, clock, Transcript())
    load = [request(f"r{n}", [(7 * n + k) % 256 for k in range(20 + 5 * n)], 40) for n in range(8)]
    for one in load:
        engine.add(one)
    run_all(engine)
    return [one.output for one in load], engine.counters.preempted


def test_a_contiguous_pool_gives_the_same_answers() -> None:
    """Where the blocks lie does not matter to the model; here runs were preempted and placed anew on the way."""
    paged, _ = answers(kv_dtype="fp32")
    contiguous, preempted = answers(kv_dtype="fp32", kv_layout="contiguous", reserve="prompt")
    assert contiguous == paged
    assert preempted > 0
    assert answers(kv_dtype="int8")[0] != [[]] * 8
