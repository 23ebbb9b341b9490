"""Weight-only int8: one scale for each output row, symmetric; activations stay in 16 bits.

The kernel reads weights in 8 bits and multiplies in bfloat16: half the bytes of a bf16 layer, and no product in
between that has the weights in 16 bits again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import KERNELS

KERNEL = KERNELS["int8"]
_LARGEST = 127.0


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [out, in] and float32 scales [out]; weight ≈ values × scale. A row of zeros has scale 0."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1) / _LARGEST
    steps = scales.clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / steps[:, None]).round_().to(torch.int8), scales


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight [out, in] that the layer stands for, in `dtype`."""
    return values * scales.to(dtype)[:, None]


class Int8Linear:
    """x · weightᵀ + bias through PyTorch's int8 kernel."""

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None, calls: KernelCalls) -> None:
        self._values = values
        self._scales = scales.bfloat16()
        self._bias = bias
        self._count = calls.by_kernel

    @property
    def nbytes(self) -> int:
        """Memory of the weights, scales included."""
        return self._values.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[KERNEL] += 1
        product = torch._weight_int8pack_mm(x.bfloat16(), self._values, self._scales).to(x.dtype)
        return product if self._bias is None else product + self._bias
