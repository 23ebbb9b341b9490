"""Weight types by name: what a weight takes in memory, and which kernel multiplies it. Needs no torch.

Quantized are the matrices of the layers; the embedding, the norms and the projection onto the vocabulary stay in 16 or
32 bits, as in most published checkpoints.
"""

from __future__ import annotations

from engine_shim.model.shapes import BYTES_PER_VALUE, Shape

INT4_GROUP = 32  # weights that share a scale and a zero point of two bytes each
QUANTIZED_BYTES = {"int8": 1.0, "int8_dynamic": 1.0, "int4": 0.5 + 4 / INT4_GROUP}
KERNELS = {"int8": "int8pack_mm", "int8_dynamic": "int8_dynamic", "int4": "int4pack_mm"}
DENSE_KERNEL = "dense_matmul"
FALLBACK_KERNEL = "dequantize_matmul"
AS_DTYPE = "dtype"
WEIGHT_TYPES = (AS_DTYPE, *BYTES_PER_VALUE, *KERNELS)


def layer_bytes(shape: Shape, weights: str, dtype: str) -> float:
    """Bytes of the matrices of all layers. `weights` is one of WEIGHT_TYPES; `dtype` what "dtype" stands for."""
    each = QUANTIZED_BYTES.get(weights) or BYTES_PER_VALUE[dtype if weights == AS_DTYPE else weights]
    return shape.layers * shape.layer_parameters * each


def head_bytes(shape: Shape, weights: str, dtype: str) -> float:
    """Bytes of the projection onto the vocabulary."""
    return shape.head_parameters * BYTES_PER_VALUE[weights if weights in BYTES_PER_VALUE else dtype]


def model_bytes(shape: Shape, weights: str, dtype: str) -> float:
    """Bytes of all weights on the device; the input embedding is a second copy of the projection unless tied."""
    copies = 1 if shape.tied_embeddings else 2
    return layer_bytes(shape, weights, dtype) + copies * head_bytes(shape, weights, dtype)


def kernel_of(weights: str, fallback: bool) -> str:
    """The kernel that multiplies weights of this type on a device that has them all."""
    if weights not in KERNELS:
        return DENSE_KERNEL
    return FALLBACK_KERNEL if fallback else KERNELS[weights]
