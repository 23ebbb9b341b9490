"""The KV cache of the torch runner: where keys and values lie, and in how many bits.

The pool is `blocks` × `block_tokens` token slots, allocated at once, for each layer. A slot holds the key and the value
vector of every KV head. Three ways of storing a vector:

- in the type of the weights: exact;
- in another float type (fp16, bf16, fp8 e4m3): rounded to it, without a scale; fp8 is cut at ±448;
- in int8: each vector of a token and head is scaled so that its largest component becomes 127; the scale is a float32
  beside it, 4 bytes for `head_dim` values.

A head's slots of a block lie together, so that what is gathered of a sequence is one run of keys for each head, as
attention wants to walk through it. Slots and blocks are therefore counted per head here: `head_slots` and `head_blocks`
turn the scheduler's numbers into these, once a step for all layers.

What is read is of the weights' type again, so that attention itself computes in full precision. Zeros, not empty
memory: padded table entries point at block 0, and a NaN there would pass any mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_shim.model.config import LlamaConfig

KV_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
FP8_MAX = 448.0
INT8_MAX = 127.0


def head_slots(slots: Tensor, kv_heads: int, block_tokens: int) -> Tensor:
    """Where the vectors [rows, kv_heads] of the tokens in `slots` [rows] lie, flattened."""
    blocks, places = slots // block_tokens, slots % block_tokens
    heads = torch.arange(kv_heads, device=slots.device)
    return ((blocks[:, None] * kv_heads + heads) * block_tokens + places[:, None]).flatten()


def head_blocks(table: Tensor, kv_heads: int) -> Tensor:
    """The rows of a block table [requests, blocks] for each head: [requests, kv_heads, blocks]."""
    heads = torch.arange(kv_heads, device=table.device)
    return table[:, None] * kv_heads + heads[:, None]


class FloatStore:
    """Vectors [blocks, kv_heads, block_tokens, head_dim] in a float type."""

    def __init__(self, shape: tuple[int, ...], stored: torch.dtype, computed: torch.dtype, device: str) -> None:
        self._vectors = torch.zeros(shape, dtype=stored, device=device)
        self._computed = computed
        self._limit = FP8_MAX if stored == torch.float8_e4m3fn else 0.0
        # Indexing moves whole values and need not know what they mean; eight-bit floats cannot be indexed everywhere.
        self._raw = self._vectors.view(torch.uint8) if self._limit else self._vectors

    @property
    def nbytes(self) -> int:
        """Memory of the store."""
        return self._vectors.nbytes

    def write(self, slots: Tensor, vectors: Tensor) -> None:
        """Store `vectors` [rows, kv_heads, head_dim] at `slots` (head_slots)."""
        if self._limit:
            vectors = vectors.clamp(-self._limit, self._limit).to(self._vectors.dtype).view(torch.uint8)
        size = self._raw.shape[-1]
        self._raw.view(-1, size).index_copy_(0, slots, vectors.reshape(-1, size).to(self._raw.dtype))

    def read(self, table: Tensor) -> Tensor:
        """The vectors of each sequence of `table` (head_blocks): [requests, kv_heads, keys, head_dim]."""
        # index_select copies whole blocks; plain indexing does the same six times slower on a CPU.
        blocks = self._raw.flatten(0, 1).index_select(0, table.flatten())
        if self._limit:
            blocks = blocks.view(self._vectors.dtype)
        return _sequences(blocks.to(self._computed), table)


class Int8Store:
    """Vectors [blocks, kv_heads, block_tokens, head_dim] in int8 with a scale for each token and head."""

    def __init__(self, shape: tuple[int, ...], computed: torch.dtype, device: str) -> None:
        self._vectors = torch.zeros(shape, dtype=torch.int8, device=device)
        self._scales = torch.zeros((*shape[:-1], 1), dtype=torch.float32, device=device)
        self._computed = computed

    @property
    def nbytes(self) -> int:
        """Memory of vectors and scales."""
        return self._vectors.nbytes + self._scales.nbytes

    def write(self, slots: Tensor, vectors: Tensor) -> None:
        """See FloatStore."""
        vectors = vectors.float()
        scales = vectors.abs().amax(dim=-1, keepdim=True) / INT8_MAX
        # A vector of zeros has scale 0; it must not become NaN.
        quantized = (vectors / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_()
        size = self._vectors.shape[-1]
        self._vectors.view(-1, size).index_copy_(0, slots, quantized.to(torch.int8).view(-1, size))
        self._scales.view(-1, 1).index_copy_(0, slots, scales.view(-1, 1))

    def read(self, table: Tensor) -> Tensor:
        """See FloatStore."""
        index = table.flatten()
        blocks = self._vectors.flatten(0, 1).index_select(0, index).to(self._computed)
        return _sequences(blocks * self._scales.flatten(0, 1).index_select(0, index).to(self._computed), table)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer."""

    keys: FloatStore | Int8Store
    values: FloatStore | Int8Store


@dataclass(frozen=True, slots=True)
class KvCache:
    """The whole pool. `kv_type` is what its vectors are stored in."""

    kv_type: str
    layers: tuple[LayerCache, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the pool, scales included."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def new_kv_cache(
    config: LlamaConfig, blocks: int, block_tokens: int, dtype: torch.dtype, device: str, kv_type: str = ""
) -> KvCache:
    """An empty pool for a model that computes in `dtype`. `kv_type`: a key of KV_TYPES or int8; the dtype if empty."""
    shape = (blocks, config.kv_heads, block_tokens, config.head_dim)
    kv_type = kv_type or next(name for name, known in KV_TYPES.items() if known == dtype)

    def store() -> FloatStore | Int8Store:
        if kv_type == "int8":
            return Int8Store(shape, dtype, device)
        return FloatStore(shape, KV_TYPES[kv_type], dtype, device)

    return KvCache(kv_type, tuple(LayerCache(store(), store()) for _ in range(config.layers)))


def _sequences(blocks: Tensor, table: Tensor) -> Tensor:
    requests, kv_heads, _ = table.shape
    return blocks.view(requests, kv_heads, -1, blocks.shape[-1])
