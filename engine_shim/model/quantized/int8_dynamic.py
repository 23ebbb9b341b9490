"""int8 on both sides: weights as in int8.py, each token's activations scaled to 8 bits in the call, integer products.

The fastest path on a CPU with integer dot products (AVX-512 VNNI), and the one whose error depends on the input: a
large activation costs the small ones beside it their precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import KERNELS

KERNEL = KERNELS["int8_dynamic"]
_LARGEST = 127.0


class Int8DynamicLinear:
    """x · weightᵀ + bias in integers. RuntimeError where this PyTorch has no such product."""

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None, calls: KernelCalls) -> None:
        self._values = values.t()
        self._scales = scales
        self._bias = bias
        self.nbytes = values.nbytes + scales.nbytes
        self._count = calls.by_kernel

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[KERNEL] += 1
        tokens = x.float()
        steps = (tokens.abs().amax(dim=-1, keepdim=True) / _LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        levels = (tokens / steps).round_().to(torch.int8)
        product = (torch._int_mm(levels, self._values).float() * steps).mul_(self._scales).to(x.dtype)
        return product if self._bias is None else product + self._bias
