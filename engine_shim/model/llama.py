"""A Llama-style decoder in plain PyTorch over a paged KV cache: RMSNorm, RoPE, grouped-query attention, SwiGLU.

All tokens of a step, decode and prefill alike, are rows of one flat batch: the dense layers see them together, and
only attention knows requests. Attention works on *groups*: `requests` sequences with `queries` tokens each, whose keys
are gathered from the cache through a padded block table. A decode bucket is (n, 1), a piece of a prefill chunk (1, n).

Invariants: position p of a sequence lives in block table[p // block_tokens], slot p % block_tokens; the keys and
values of all rows of a layer are written before any group of that layer attends, so that chunks see themselves and
whatever the cache already holds, whoever computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from engine_shim.model.config import LlamaConfig
from engine_shim.model.kv_cache import KvCache, LayerCache
from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.layers import Linear, linear_for
from engine_shim.model.quantized.stored import AS_DTYPE
from engine_shim.model.rope import RotaryTable, rotate


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; projections that read the same input are fused. Matrices are [out, in]; None: there is none."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    query_norm: Tensor | None = None  # [head_dim], for each head
    key_norm: Tensor | None = None


@dataclass(slots=True)
class LlamaWeights:
    """All weights of a model, on one device and of one dtype."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True)
class Storage:
    """How linear layers hold their weights: "dtype" (as loaded), or what quantized.layers.linear_for takes.

    Embedding, norms and the projection onto the vocabulary stay as loaded unless `weights` is a float type. `fallback`
    unpacks quantized weights before each product even where a kernel for them exists.
    """

    weights: str = AS_DTYPE
    fallback: bool = False


@dataclass(slots=True)
class AttentionGroup:
    """Rows `first` … `first + requests × queries − 1` of the batch: sequences that attend in one call."""

    first: int
    requests: int
    queries: int
    table: Tensor  # [requests, kv_heads, blocks]: kv_cache.head_blocks, padded with block 0
    mask: Tensor  # [requests, 1, queries, keys], 0 where a query may look, else −∞


@dataclass(slots=True)
class TokenBatch:
    """What one step computes, as tensors. `slots` says where each row's key and value go in the cache."""

    ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    longest: int  # every position is below it
    slots: Tensor  # kv_cache.head_slots of the rows
    groups: list[AttentionGroup]
    sampled_rows: Tensor  # rows whose logits are wanted


class _Layer:
    """A decoder layer, ready to run: norms, and projections by the kernels that were found for them."""

    def __init__(self, weights: LayerWeights, storage: str, fallback: bool, calls: KernelCalls) -> None:
        self.attention_norm, self.mlp_norm = weights.attention_norm, weights.mlp_norm
        self.query_norm, self.key_norm = weights.query_norm, weights.key_norm

        def linear(weight: Tensor, bias: Tensor | None) -> Linear:
            return linear_for(weight, bias, storage, calls, fallback)

        self.qkv = linear(weights.qkv, weights.qkv_bias)
        self.output = linear(weights.output, weights.output_bias)
        self.gate_up = linear(weights.gate_up, weights.gate_up_bias)
        self.down = linear(weights.down, weights.down_bias)


class Llama:
    """The decoder: weights and their shape, without any state of requests.

    `weights` is used up: each layer's matrices are let go once its kernels hold their own copy.
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, storage: Storage | None = None) -> None:
        storage = storage or Storage()
        self.config = config
        self.calls = KernelCalls()
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        loaded = _NAMES[self.dtype]
        named = loaded if storage.weights == AS_DTYPE else storage.weights
        self._embedding, self._norm = weights.embedding, weights.norm
        self._layers: list[_Layer] = []
        while weights.layers:
            self._layers.append(_Layer(weights.layers.pop(0), named, storage.fallback, self.calls))
        self._head = linear_for(weights.head, None, named if named in _NAMES.values() else loaded, self.calls)
        self._rotary = RotaryTable(config, self.dtype, self.device)
        self.calls.restarted()  # the calls that tried kernels out are not the engine's

    @property
    def linear_bytes(self) -> int:
        """Memory of the projections, scales included: what a decode step reads of them."""
        layers = sum(x.nbytes for layer in self._layers for x in (layer.qkv, layer.output, layer.gate_up, layer.down))
        return layers + self._head.nbytes

    @torch.inference_mode()
    def logits(self, batch: TokenBatch, kv_cache: KvCache) -> Tensor:
        """Next-token logits of `batch.sampled_rows`, float32 [rows, vocab]; writes the batch's keys and values."""
        eps, hidden = self.config.rms_eps, (self.config.hidden_size,)
        cos, sin = self._rotary(batch.positions, batch.longest)
        x = F.embedding(batch.ids, self._embedding)
        for layer, layer_cache in zip(self._layers, kv_cache.layers, strict=True):
            normed = F.rms_norm(x, hidden, layer.attention_norm, eps)
            x = x + layer.output(self._attention(layer, layer.qkv(normed), batch, layer_cache, cos, sin))
            normed = F.rms_norm(x, hidden, layer.mlp_norm, eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        x = F.rms_norm(x[batch.sampled_rows], hidden, self._norm, eps)
        return self._head(x).float()

    def _attention(
        self, layer: _Layer, qkv: Tensor, batch: TokenBatch, layer_cache: LayerCache, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Rotate, write keys and values to the cache, attend group by group: [rows, heads × head_dim]."""
        c = self.config
        heads = qkv.view(len(qkv), -1, c.head_dim)
        asked_and_keyed = heads[:, : c.heads + c.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            normed = F.rms_norm(asked_and_keyed, (c.head_dim,), None, c.rms_eps)
            asked, keyed = normed[:, : c.heads] * layer.query_norm, normed[:, c.heads :] * layer.key_norm
            asked_and_keyed = torch.cat((asked, keyed), dim=1)
        rotated = rotate(asked_and_keyed, cos, sin)
        queries = rotated[:, : c.heads]
        layer_cache.keys.write(batch.slots, rotated[:, c.heads :])
        layer_cache.values.write(batch.slots, heads[:, c.heads + c.kv_heads :])
        outputs = [self._attend(queries, group, layer_cache) for group in batch.groups]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, queries: Tensor, group: AttentionGroup, layer_cache: LayerCache) -> Tensor:
        c = self.config
        rows = group.requests * group.queries
        q = queries[group.first : group.first + rows]
        k, v = layer_cache.keys.read(group.table), layer_cache.values.read(group.table)
        if group.queries == 1:  # the heads that share keys become the query axis: nothing is copied
            q = q.view(group.requests, c.kv_heads, c.heads // c.kv_heads, c.head_dim)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        else:
            q = q.view(group.requests, group.queries, c.heads, c.head_dim).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, enable_gqa=True).transpose(1, 2)
        return out.reshape(rows, c.heads * c.head_dim)


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
