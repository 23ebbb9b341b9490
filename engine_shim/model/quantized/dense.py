"""Linear layers that keep every weight as it is: PyTorch's own product, and oneDNN's on a CPU.

oneDNN reads weights that were laid out once, in the blocks that its kernels walk through; PyTorch's product lays them
out again in every call, or uses a library that knows this processor less well. Measured on two cores of an AVX-512
processor, with 8 to 32 rows: 1.4 to 2 times as fast in both fp32 and bf16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import DENSE_KERNEL

PACKED = "onednn_packed"


class DenseLinear:
    """x · weightᵀ + bias in the weight's type; activations of another type are converted there and back."""

    def __init__(self, weight: Tensor, bias: Tensor | None, calls: KernelCalls) -> None:
        self._weight = weight
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._count = calls.by_kernel

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[DENSE_KERNEL] += 1
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias).to(x.dtype)


class PackedLinear:
    """The same product over weights in oneDNN's own layout. RuntimeError where this PyTorch has no such kernel."""

    def __init__(self, weight: Tensor, bias: Tensor | None, calls: KernelCalls) -> None:
        if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
            raise RuntimeError("oneDNN packs float32 and bfloat16 weights on a CPU")
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._dtype = weight.dtype
        self.nbytes = weight.nbytes
        self._count = calls.by_kernel

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[PACKED] += 1
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return product.to(x.dtype)
