"""What a kernel is for, from its name: attention, GEMM by type, quantized GEMM, dequantize, collective, copy and others.

Names are those of cuBLAS, CUTLASS, FlashAttention, FlashInfer, Triton, NCCL, vLLM, SGLang, TensorRT-LLM, rocBLAS, and of
PyTorch's operators where a trace has no device. The first row that matches decides, so that narrow rows stand first.
"""

from __future__ import annotations

import re
from functools import lru_cache

KERNEL_CLASSES: dict[str, str] = {
    "collective": "communication between devices",
    "dequantize": "unpacking of weights before a product",
    "quantize": "packing of activations or of KV",
    "attention": "attention over the KV cache or the prompt",
    "quantized_gemm": "products that read packed weights",
    "gemm": "products of dense weights",
    "kv_write": "writing keys and values into the cache",
    "sampling": "choosing the next token",
    "copy": "copies and fills",
    "pointwise": "norms, activations, rotary embedding, sums",
    "other": "everything else",
}
"""Class → what it is."""

_PARTS: dict[str, tuple[str, ...]] = {
    "collective": (
        "nccl", "rccl", "all_?reduce", "cross_device_reduce", "all_?gather", "reduce_?scatter", "all_?to_?all", "nvshmem",
        "deep_?ep",
    ),
    "dequantize": ("dequant", "reconstruct_(?:exllama|gptq)", "unpack_weight", "awq_dq"),
    "kv_write": (
        "reshape_and_cache", "store_kv", "set_kv_buffer", "concat_and_cache", "write_kv", "index_put", "kv_cache_kernel",
    ),
    "attention": (
        "flash", "fmha", "paged_?att", "unified_att", "attention", "batch(?:decode|prefill)with", "_mla_", "sdpa",
        "scaled_dot_product",
    ),
    "quantized_gemm": (
        "marlin", "machete", "awq_gemm", "gptq.*gemm", "gemm.*gptq", "exllama", "gemm_half_q_half", "int[48]pack_mm",
        "weight_int", "_int_mm", "scaled_mm", "qlinear", "kgemm_4bit", "imma", "deep_gemm", "nvjet_(?:q|e)",
        "gemm.*(?:i8|s8|int8|e4m3|e5m2|fp8|fp4|nvfp4|w4a|w8a)", "(?:i8|s8|int8|e4m3|fp8|fp4|w4a|w8a).*gemm",
    ),
    "quantize": ("quant",),
    "gemm": (
        "gemm", "gemv", "nvjet", "cijk_", "matmul", "splitkreduce", "linear", "fused_moe", "grouped_mm", "wgmma",
        "aten::(?:mm|bmm|addmm|baddbmm)", r"\bmm\b",
    ),
    "sampling": ("sampl", "top_?k", "top_?p", "argmax", "multinomial", "bitonic", "radixsort", r"\bsort"),
    "copy": ("memcpy", "memset", "copy", "catarray", "aten::(?:cat|to|clone|contiguous|fill_|zero_)", "fillfunctor"),
    "pointwise": (
        "norm", "silu", "gelu", "relu", "swiglu", "act_and_mul", "rotary", "rope", "elementwise", "vectorized", "softmax",
        "reduce_kernel", "triton_(?:poi|red|per)", "embedding", "index",
        "aten::(?:add|mul|sub|div|pow|rsqrt|mean|sum|neg|sin|cos|gather|where|exp)",
    ),
}  # fmt: skip
_ROWS = tuple((name, re.compile("|".join(parts))) for name, parts in _PARTS.items())

_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("fp8", r"e4m3|e5m2|fp8|f8f8"),
        ("fp4", r"nvfp4|mxfp4|fp4"),
        ("int8", r"int8|s8s8|i8816|i16832|imma|w8a8"),
        ("int4", r"int4|w4a16|awq|gptq|marlin|4bit"),
        ("bf16", r"bf16|bfloat16|_tst_|_bbs_|bfloat"),
        ("fp16", r"f16|fp16|half|_hsh_|_hss_|_hhs_|_hsss_|hgemm|16816"),
        ("tf32", r"tf32"),
        ("fp32", r"sgemm|f32|fp32|_sss_|float"),
    )
)
_NAME_CHARS = 1000  # templates of CUTLASS run to kilobytes; what matters stands in front


@lru_cache(maxsize=8192)
def classify(name: str) -> str:
    """The class of a kernel or operator."""
    low = name[:_NAME_CHARS].lower()
    return next((kind for kind, row in _ROWS if row.search(low)), "other")


@lru_cache(maxsize=8192)
def number_type(name: str) -> str:
    """The number type that the name of a GEMM tells: bf16, fp16, fp8, int8, …; empty where it does not."""
    low = name[:_NAME_CHARS].lower()
    return next((kind for kind, row in _TYPES if row.search(low)), "")
