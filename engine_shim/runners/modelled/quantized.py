"""What weights of a type cost a modelled device: bytes read, bytes unpacked, and the rate of matrix products.

A kernel for packed weights reads them packed and unpacks them on the way to the tensor cores; products of many rows
then reach a little less than dense ones. Activations in 8 bits use the integer units, at twice the 16-bit peak on all
parts since Ampere. The fallback runs another kernel first, which reads packed and writes 16 bits, and then the dense
product, which reads those: memory traffic is packed + 2 × unpacked, and tensor cores wait for the first part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.stored import (
    AS_DTYPE,
    DENSE_KERNEL,
    FALLBACK_KERNEL,
    KERNELS,
    head_bytes,
    kernel_of,
    layer_bytes,
)

if TYPE_CHECKING:
    from engine_shim.settings.engine import EngineSettings

LAYER_PRODUCTS = 4  # qkv, output, gate and up, down
# Mixed-precision kernels at large batches, next to a dense product (published for Marlin on A10 and A100).
_PACKED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class ModelledWeights:
    """Per step and over all GPUs of the engine. Rates are multiples of the device's 16-bit ones."""

    read_bytes: float  # by the matrix products
    unpack_bytes: float  # read and written before them
    peak_factor: float = 1.0
    matmul_factor: float = 1.0


def modelled_weights(settings: EngineSettings) -> ModelledWeights:
    """For weights that differ from the type of the activations."""
    shape, weights, dtype = settings.shape, settings.weights, settings.dtype
    packed, head = layer_bytes(shape, weights, dtype), head_bytes(shape, weights, dtype)
    kernel = kernel_of(weights, settings.quantization_fallback)
    if kernel == FALLBACK_KERNEL:
        unpacked = layer_bytes(shape, dtype, dtype)
        return ModelledWeights(unpacked + head, packed + unpacked)
    if kernel == KERNELS["int8_dynamic"]:
        return ModelledWeights(packed + head, 0.0, peak_factor=2.0, matmul_factor=2.0)
    return ModelledWeights(packed + head, 0.0, matmul_factor=1.0 if kernel == DENSE_KERNEL else _PACKED_SHARE)


class ModelledCalls(KernelCalls):
    """Counts what modelled steps run: the products of each layer by their kernel, and the dense one at the end."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self._kernel = kernel_of(settings.weights, settings.quantization_fallback)
        self._layer_calls = LAYER_PRODUCTS * settings.shape.layers

    def ran(self, steps: int) -> None:
        """So many steps were computed."""
        self.by_kernel[self._kernel] += steps * self._layer_calls
        self.by_kernel[DENSE_KERNEL] += steps


def modelled_calls(settings: EngineSettings) -> ModelledCalls | None:
    """None where weights are what activations are: there is nothing to tell apart."""
    return None if settings.weights == AS_DTYPE else ModelledCalls(settings)
