"""A Llama-style decoder in plain PyTorch over a paged KV cache: RMSNorm, RoPE, grouped-query attention, SwiGLU.

All tokens of a step, decode and prefill alike, are rows of one flat batch: the dense layers see them together, and
only attention knows requests. Attention works on *groups*: `requests` sequences with `queries` tokens each, whose keys
are gathered from the cache through a padded block table. A decode bucket is (n, 1), a piece of a prefill chunk (1, n).

Invariants: position p of a sequence lives in block table[p // block_tokens], slot p % block_tokens; the keys and
values of all rows of a layer are written before any group of that layer attends, so that chunks see themselves and
whatever the cache already holds, whoever computed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from engine_shim.kv_cache import KvCache, LayerCache
from engine_shim.llama_config import LlamaConfig


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer; projections that read the same input are fused. Shapes are [out, in]."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class LlamaWeights:
    """All weights of a model, on one device and of one dtype."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor


@dataclass(slots=True)
class AttentionGroup:
    """Rows `first` … `first + requests × queries − 1` of the batch: sequences that attend in one call."""

    first: int
    requests: int
    queries: int
    table: Tensor  # [requests, blocks], padded with block 0
    mask: Tensor  # [requests, 1, queries, keys], True where a query may look


@dataclass(slots=True)
class TokenBatch:
    """What one step computes, as tensors. `slots` says where each row's key and value go in the cache."""

    ids: Tensor  # [rows]
    positions: Tensor  # [rows]
    slots: Tensor  # [rows]
    groups: list[AttentionGroup]
    sampled_rows: Tensor  # rows whose logits are wanted


def rope_inverse_frequencies(config: LlamaConfig) -> Tensor:
    """Radians per position of each pair of head dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    wavelength = 2 * math.pi / plain
    long_from = scaling.original_max_positions / scaling.low_freq_factor
    short_until = scaling.original_max_positions / scaling.high_freq_factor
    blend = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    stretched = torch.where(wavelength > long_from, plain / scaling.factor, plain)
    between = (wavelength <= long_from) & (wavelength >= short_until)
    return torch.where(between, blended, stretched)


class Llama:
    """The decoder: weights and their shape, without any state of requests."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._inverse_frequencies = rope_inverse_frequencies(config).to(self.device)

    @torch.inference_mode()
    def logits(self, batch: TokenBatch, kv_cache: KvCache) -> Tensor:
        """Next-token logits of `batch.sampled_rows`, float32 [rows, vocab]; writes the batch's keys and values."""
        eps, hidden = self.config.rms_eps, (self.config.hidden_size,)
        angles = batch.positions.float()[:, None] * self._inverse_frequencies
        cos, sin = angles.cos()[:, None, :].to(self.dtype), angles.sin()[:, None, :].to(self.dtype)
        x = F.embedding(batch.ids, self.weights.embedding)
        for layer, layer_cache in zip(self.weights.layers, kv_cache.layers, strict=True):
            normed = F.rms_norm(x, hidden, layer.attention_norm, eps)
            x = x + F.linear(self._attention(F.linear(normed, layer.qkv), batch, layer_cache, cos, sin), layer.output)
            normed = F.rms_norm(x, hidden, layer.mlp_norm, eps)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        x = F.rms_norm(x[batch.sampled_rows], hidden, self.weights.norm, eps)
        return F.linear(x, self.weights.head).float()

    def _attention(self, qkv: Tensor, batch: TokenBatch, layer_cache: LayerCache, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate, write keys and values to the cache, attend group by group: [rows, heads × head_dim]."""
        c = self.config
        heads = qkv.view(len(qkv), -1, c.head_dim)
        rotated = _rotate(heads[:, : c.heads + c.kv_heads], cos, sin)
        queries = rotated[:, : c.heads]
        layer_cache.keys.write(batch.slots, rotated[:, c.heads :])
        layer_cache.values.write(batch.slots, heads[:, c.heads + c.kv_heads :])
        outputs = [self._attend(queries, group, layer_cache) for group in batch.groups]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, queries: Tensor, group: AttentionGroup, layer_cache: LayerCache) -> Tensor:
        c = self.config
        shared = c.heads // c.kv_heads  # query heads that read the same key head
        rows = group.requests * group.queries
        q = queries[group.first : group.first + rows]
        k, v = layer_cache.keys.read(group.table), layer_cache.values.read(group.table)
        if group.queries == 1:  # the heads that share keys become the query axis: nothing is copied
            q = q.view(group.requests, c.kv_heads, shared, c.head_dim)
        else:
            q = q.view(group.requests, group.queries, c.heads, c.head_dim).transpose(1, 2)
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        if group.queries > 1:
            out = out.transpose(1, 2)
        return out.reshape(rows, c.heads * c.head_dim)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding over the two halves of the last axis, as the published Llama weights expect it."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
