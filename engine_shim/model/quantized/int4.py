"""Weight-only int4: 16 levels for each group of 32 weights of an output row, with a scale and a zero point.

weight ≈ (level − 8) × scale + zero. The kernel reads 4 bits a weight plus 4 bytes a group, 5 bits in all, and
multiplies in bfloat16. PyTorch packs the levels differently on a CPU and on a GPU; both ways are here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import INT4_GROUP, KERNELS

KERNEL = KERNELS["int4"]
GROUP = INT4_GROUP
LEVELS = 16
_MIDDLE = LEVELS // 2
_INNER_K_TILES = 8  # how the GPU kernel wants its tiles: 8 × 16 inputs together


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels 0…15 as uint8 [out, in], scales and zeros as bfloat16 [out, groups]. `in` must be whole groups."""
    if weight.shape[1] % GROUP:
        raise ValueError(f'weights = "int4" needs inputs in groups of {GROUP}, a layer has {weight.shape[1]}; use int8')
    grouped = weight.float().view(len(weight), -1, GROUP)
    low, high = grouped.amin(dim=-1), grouped.amax(dim=-1)
    scales = ((high - low) / (LEVELS - 1)).bfloat16()
    zeros = (low + scales.float() * _MIDDLE).bfloat16()
    # Levels are chosen for the scale and the zero as they are stored, so that rounding those costs nothing twice.
    steps = scales.float().clamp(min=torch.finfo(torch.float32).tiny)
    levels = (grouped - zeros.float()[..., None]) / steps[..., None] + _MIDDLE
    return levels.round_().clamp_(0, LEVELS - 1).to(torch.uint8).view(weight.shape), scales, zeros


def pack_pairs(levels: Tensor) -> Tensor:
    """Two levels a byte, the earlier one in the high half."""
    return (levels[:, ::2] << 4) | levels[:, 1::2]


def dequantize(pairs: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight [out, in] that the layer stands for, in `dtype`, from levels packed by `pack_pairs`."""
    rows = len(pairs)
    levels = torch.stack((pairs >> 4, pairs & 0xF), dim=-1).view(rows, -1, GROUP).to(dtype)
    lowest = torch.addcmul(zeros.float(), scales.float(), scales.new_tensor(-_MIDDLE).float()).to(dtype)
    return torch.addcmul(lowest[..., None], levels, scales.to(dtype)[..., None]).view(rows, -1)


class Int4Linear:
    """x · weightᵀ + bias through PyTorch's int4 kernel. RuntimeError where there is none for this device or shape."""

    def __init__(self, levels: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, calls: KernelCalls) -> None:
        self._on_cpu = levels.device.type == "cpu"
        if self._on_cpu:
            self._packed = torch._convert_weight_to_int4pack_for_cpu(levels.int(), 1)
        else:
            self._packed = torch._convert_weight_to_int4pack(pack_pairs(levels), _INNER_K_TILES)
        self._scales_and_zeros = torch.stack((scales, zeros), dim=-1).transpose(0, 1).contiguous()
        self._bias = bias
        self._count = calls.by_kernel

    @property
    def nbytes(self) -> int:
        """Memory of the weights, scales and zero points included."""
        return self._packed.nbytes + self._scales_and_zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        self._count[KERNEL] += 1
        multiply = torch._weight_int4pack_mm_for_cpu if self._on_cpu else torch._weight_int4pack_mm
        product = multiply(x.bfloat16(), self._packed, GROUP, self._scales_and_zeros).to(x.dtype)
        return product if self._bias is None else product + self._bias
