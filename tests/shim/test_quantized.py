"""Weights in fewer bits: what is stored, which kernel ran, and what a modelled device pays for either."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.clock import VirtualClock
from engine_shim.devices.profile_file import device_named
from engine_shim.model.config import config_of
from engine_shim.model.llama import Storage
from engine_shim.model.quantized import int4, int8
from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.layers import linear_for
from engine_shim.model.quantized.stored import KERNELS, QUANTIZED_BYTES
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import seeded
from engine_shim.request import Request
from engine_shim.runners.modelled.runner import ModelRunner
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.serving import ServeOptions, build
from engine_shim.settings.engine import EngineSettings, room_tokens
from engine_shim.step import StepPlan
from engine_shim.telemetry.compute_page import kernel_families
from tests.shim.playing import make_engine, played, request, run_all, steady

TINY = SHAPES["tiny"]


def matrix(rows: int, columns: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size


@given(seed=st.integers(0, 2**31), size=st.floats(1e-4, 1e3))
@settings(max_examples=40, deadline=None)
def test_what_is_stored_is_within_half_a_step(seed, size):
    """int8: half a 127th of the row's largest. int4: half a 15th of the group's range, and the rounding of its ends."""
    weight = matrix(8, 64, seed, size)
    values, scales = int8.quantize(weight)
    error = (int8.dequantize(values, scales, torch.float32) - weight).abs()
    assert bool((error <= scales[:, None] * 0.501).all())
    levels, scales, zeros = int4.quantize(weight)
    stored = int4.dequantize(int4.pack_pairs(levels), scales, zeros, torch.float32)
    groups = (stored - weight).abs().view(8, -1, int4.GROUP).amax(dim=-1)
    largest = weight.abs().view(8, -1, int4.GROUP).amax(dim=-1)
    assert bool((groups <= scales.float() * 0.501 + largest * 2**-6).all())


@pytest.mark.parametrize("weights", KERNELS)
def test_constant_rows_and_zeros_are_exact_enough(weights):
    """A row of zeros stays zero and one of equal weights keeps its value: no division by an empty range."""
    weight = torch.zeros(64, 64)
    weight[1] = 0.5
    product = linear_for(weight, None, weights, KernelCalls())(torch.ones(1, 64))
    assert product[0, 0] == 0
    assert product[0, 1].item() == pytest.approx(32, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("weights", ["fp32", "bf16", *KERNELS])
def test_every_path_multiplies_with_the_weights_it_stores(weights, rows, bias, dtype):
    """The kernel and the fallback agree with each other, and with the unquantized product as the bits allow."""
    weight, x = matrix(192, 128, 1, 128**-0.5).to(dtype), matrix(rows, 128, 2).to(dtype)
    more = matrix(1, 192, 3)[0].to(dtype) if bias else None
    exact = torch.nn.functional.linear(x.float(), weight.float(), None if more is None else more.float())
    kernel = linear_for(weight, more, weights, KernelCalls())(x)
    fallback = linear_for(weight, more, weights, KernelCalls(), fallback=True)(x)
    assert kernel.dtype == fallback.dtype == dtype
    bound = 0.08 if weights == "int4" else 0.02
    assert (kernel.float() - exact).norm() < bound * exact.norm()
    assert (kernel.float() - fallback.float()).norm() < 0.02 * exact.norm()


def plan_of_one() -> StepPlan:
    prompt = list(range(5))
    return StepPlan(prefill=[(Request("r", 5, 5, 0.0, 5, prompt=prompt, blocks=[0]), 5)])


@pytest.mark.parametrize("weights", KERNELS)
@pytest.mark.parametrize("fallback", [False, True])
def test_a_step_counts_the_kernels_that_ran(weights, fallback):
    """Four products a layer under the name of the path taken, one for the vocabulary, and none from choosing it."""
    model = seeded(config_of(TINY), 0, storage=Storage(weights, fallback))
    assert not model.calls.by_kernel
    runner = TorchRunner(model, 4, 16, VirtualClock())
    for _ in range(3):
        runner.run(plan_of_one())
    kernel = "dequantize_matmul" if fallback else KERNELS[weights]
    assert dict(model.calls.by_kernel) == {kernel: 3 * 4 * TINY.layers, "onednn_packed": 3}


OPERATIONS = {"int8": "_weight_int8pack_mm", "int8_dynamic": "_int_mm", "int4": "_weight_int4pack_mm_for_cpu"}


@pytest.mark.parametrize("weights", KERNELS)
@pytest.mark.parametrize("wrong", ["missing", "nonsense"])
def test_a_kernel_that_does_not_work_here_falls_back_silently(monkeypatch, weights, wrong):
    """It is asked for and does not run: the page says what did, beside what was configured."""
    real = getattr(torch, OPERATIONS[weights])

    def broken(*arguments):
        if wrong == "missing":
            raise RuntimeError("not implemented for this device")
        return real(*arguments) * 3

    monkeypatch.setattr(torch, OPERATIONS[weights], broken)
    model = seeded(config_of(TINY), 0, storage=Storage(weights))
    TorchRunner(model, 4, 16, VirtualClock()).run(plan_of_one())
    page = "\n".join(line for family in kernel_families(model.calls, weights) for line in family.render())
    assert f'shim:linear_calls_total{{kernel="dequantize_matmul"}} {4 * TINY.layers}' in page
    assert f'shim:linear_kernel_info{{kernel="dequantize_matmul",weights="{weights}"}} 1' in page
    assert f'kernel="{KERNELS[weights]}"' not in page


@pytest.mark.parametrize("vllm", [False, True], ids=["own page", "vLLM's page"])
def test_a_served_engine_shows_kernels_and_drafts(vllm):
    """Settings reach the model and the scheduler, and the page says what came of both; vLLM's shows drafts only."""
    changes = {"weights": "int8", "quantization_fallback": True, "speculative": "ngram", "speculative_tokens": 2}
    serving = build(
        ServeOptions(vllm_page=vllm), {**changes, "kv_pool_tokens": 1024, "max_num_seqs": 4}, VirtualClock()
    )
    serving.engine.add(request("r", [1, 2, 3] * 4, 20))
    run_all(serving.engine)
    page = serving.telemetry.render().decode()
    serving.telemetry.close()
    drafts = re.search(r"spec_decode_num_draft_tokens_total(?:{.*})? (\d+)", page)
    assert drafts is not None
    assert int(drafts[1]) == serving.engine.scheduler.speculation.counts.draft_tokens > 0
    if vllm:
        assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"}' in page
        return
    calls = re.search(r'shim:linear_calls_total{kernel="dequantize_matmul"} (\d+)', page)
    assert calls is not None
    assert int(calls[1]) >= 4 * TINY.layers


def test_quantized_layers_take_the_memory_that_settings_count_with():
    """Bits a weight, scales included, as the modelled device reckons: within the scales of the rows of int8."""
    for weights, each in QUANTIZED_BYTES.items():
        model = seeded(config_of(TINY), 0, storage=Storage(weights))
        taken = model.linear_bytes - TINY.head_parameters * 4
        assert taken / (TINY.layers * TINY.layer_parameters) == pytest.approx(each, rel=0.05)


def test_inputs_that_are_no_whole_groups_are_refused():
    """int4 has no path for them, and the message says what to use instead."""
    with pytest.raises(ValueError, match=r'weights = "int4" needs inputs in groups of 32, a layer has 40; use int8'):
        linear_for(matrix(64, 40), None, "int4", KernelCalls())


# -- the modelled device ------------------------------------------------------------------------------------------


def step(decodes: int = 16, **changes) -> tuple[ModelRunner, float]:
    """A decode step of 16 requests of 500 tokens on an H100 with 7B weights."""
    checked = EngineSettings.from_table({"model": "7b", **changes})
    runner = ModelRunner(checked, device_named("h100"))
    requests = [request(f"r{i}", 500, 100) for i in range(decodes)]
    return runner, runner.run(StepPlan(decode=requests, context_tokens=500 * decodes))[1]


def test_fewer_bits_are_fewer_bytes_and_shorter_steps():
    """A decode step reads packed weights: bf16, int8, int4 in this order, by the bytes that they take."""
    read = {weights: step(weights=weights)[0].work[2] for weights in ("dtype", "int8", "int4")}
    layers = SHAPES["7b"].layers * SHAPES["7b"].layer_parameters
    assert read["dtype"] - read["int8"] == pytest.approx(layers)
    assert read["int8"] - read["int4"] == pytest.approx(layers * 0.375)
    seconds = [step(weights=weights)[1] for weights in ("dtype", "int8", "int4")]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("weights", KERNELS)
def test_the_fallback_moves_the_weights_three_times(weights):
    """Packed once and unpacked twice: slower than weights that were never quantized, with idler tensor cores."""
    layers = SHAPES["7b"].layers * SHAPES["7b"].layer_parameters
    dense, dense_s = step()
    kernel, kernel_s = step(weights=weights)
    fallback, fallback_s = step(weights=weights, quantization_fallback=True)
    packed = layers * QUANTIZED_BYTES[weights]
    assert fallback.work[2] - kernel.work[2] == pytest.approx(2 * layers * 2)
    assert fallback.work[2] - dense.work[2] == pytest.approx(packed + layers * 2)
    assert fallback_s > dense_s > kernel_s

    def tensor_ratio(runner: ModelRunner, seconds: float) -> float:
        readings = runner.readings(np.array([runner.work]), np.array([seconds]))
        return float(readings["tensor_active_ratio"][0])

    assert tensor_ratio(fallback, fallback_s) < tensor_ratio(dense, dense_s)


def test_room_for_kv_grows_by_what_weights_save():
    """The fallback saves memory, if not time."""
    h100 = device_named("h100")
    rooms = [
        room_tokens(EngineSettings.from_table({"model": "7b", **changes}), h100)
        for changes in (
            {},
            {"weights": "int8"},
            {"weights": "int4"},
            {"weights": "int4", "quantization_fallback": True},
        )
    ]
    assert rooms[0] < rooms[1] < rooms[2] == rooms[3]


def test_fused_steps_count_and_cost_the_same():
    """Stretches of decode steps are exact with quantized weights too, and their products are counted."""

    def run(fuse: bool) -> tuple[dict, dict]:
        engine = make_engine(weights="int4", quantization_fallback=True)
        transcript = played(engine, steady(5, 3.0, 5.0, (50, 400), (50, 150)), 12.0, fuse=fuse)
        return transcript.columns, dict(engine.runner.calls.by_kernel)

    (one, calls), (other, other_calls) = run(fuse=True), run(fuse=False)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)
    assert calls == other_calls
    assert calls["dequantize_matmul"] == calls["dense_matmul"] * 4 * SHAPES["7b"].layers


BAD = {
    "an unknown type": ({"weights": "int3"}, "weights must be one of dtype, fp32, bf16"),
    "a fallback from nothing": ({"quantization_fallback": True}, "set weights to one of int8, int8_dynamic, int4"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_name_the_key(case):
    """And say what to change."""
    table, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)
