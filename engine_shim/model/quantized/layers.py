"""Chooses the kernel path of a linear layer by how its weights are to be stored.

`linear_for` takes the kernel that was asked for if it exists here and computes the right thing, else the fallback.
A layer says which path it took only by running: each call counts under the name of the kernel that ran (calls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine_shim.model.quantized import int4, int8
from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.dense import DenseLinear, PackedLinear
from engine_shim.model.quantized.fallback import DequantizedLinear
from engine_shim.model.quantized.int4 import Int4Linear
from engine_shim.model.quantized.int8 import Int8Linear
from engine_shim.model.quantized.int8_dynamic import Int8DynamicLinear

DENSE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE_ERROR = 0.1  # of the product's norm: kernels that round activations to 8 bits stay below 0.05


class Linear(Protocol):
    """A linear layer, ready to run. `nbytes` is the memory of its weights."""

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out], in the type of `x`."""
        ...


def linear_for(weight: Tensor, bias: Tensor | None, weights: str, calls: KernelCalls, fallback: bool = False) -> Linear:
    """A layer that holds `weight` [out, in] as `weights` says: a key of DENSE_TYPES or of stored.KERNELS.

    `fallback` asks for the dequantizing path even where a kernel exists. The kernel is tried once, which `calls` sees.
    ValueError if `weight` cannot be stored so.
    """
    if weights in DENSE_TYPES:
        return _dense(weight.to(DENSE_TYPES[weights]), bias, calls)
    kernel, unquantized = _int4(weight, bias, calls) if weights == "int4" else _int8(weight, bias, calls, weights)
    if fallback:
        return unquantized
    try:
        layer = kernel()
        return layer if _agrees(layer, unquantized, weight) else unquantized
    except (RuntimeError, AttributeError):  # no kernel for this device, shape or type
        return unquantized


def _dense(weight: Tensor, bias: Tensor | None, calls: KernelCalls) -> Linear:
    try:
        return PackedLinear(weight, bias, calls)
    except (RuntimeError, AttributeError):
        return DenseLinear(weight, bias, calls)


def _int8(weight: Tensor, bias: Tensor | None, calls: KernelCalls, name: str) -> tuple[Callable[[], Linear], Linear]:
    values, scales = int8.quantize(weight)
    layer = Int8Linear if name == "int8" else Int8DynamicLinear
    unquantized = DequantizedLinear(
        partial(int8.dequantize, values, scales), values.nbytes + scales.nbytes, bias, calls
    )
    return partial(layer, values, scales, bias, calls), unquantized


def _int4(weight: Tensor, bias: Tensor | None, calls: KernelCalls) -> tuple[Callable[[], Linear], Linear]:
    levels, scales, zeros = int4.quantize(weight)
    pairs = int4.pack_pairs(levels)
    nbytes = pairs.nbytes + scales.nbytes + zeros.nbytes
    unquantized = DequantizedLinear(partial(int4.dequantize, pairs, scales, zeros), nbytes, bias, calls)
    return partial(Int4Linear, levels, scales, zeros, bias, calls), unquantized


def _agrees(layer: Linear, reference: Linear, weight: Tensor) -> bool:
    """Whether the kernel computes, on this processor, what the weights say: some do not for some shapes."""
    # A fixed input: sine waves, so that nothing cancels out and nothing depends on a generator's state.
    x = torch.arange(2 * weight.shape[1], device=weight.device).view(2, -1).float().sin().to(weight.dtype)
    wanted = reference(x).float()
    error = (layer(x).float() - wanted).norm()
    return bool(error <= _PROBE_ERROR * wanted.norm() + torch.finfo(torch.float32).tiny)
