"""The silent fallback: weights stored in 4 or 8 bits, turned back into 16 or 32 bits before each product.

It happens to real engines where no kernel fits the device, the shape or the type, and it is slower than weights that
were never quantized: each call reads the packed weights, writes them unpacked and reads them again, and the product
itself is the dense one. Memory is saved, time is not. Answers are those of the quantized weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor
from torch.profiler import record_function

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import FALLBACK_KERNEL


class DequantizedLinear:
    """x · weightᵀ + bias, with a weight that `unpack(dtype)` makes anew in every call."""

    def __init__(
        self, unpack: Callable[[torch.dtype], Tensor], nbytes: int, bias: Tensor | None, calls: KernelCalls
    ) -> None:
        self._unpack = unpack
        self._bias = bias
        self._count = calls.by_kernel
        self.nbytes = nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[FALLBACK_KERNEL] += 1
        with record_function("dequantize_weight"):  # what a profiler of the engine is to see, by what it does
            weight = self._unpack(x.dtype)
        return F.linear(x, weight, self._bias)
