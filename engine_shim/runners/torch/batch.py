"""From a step plan to tensors: which tokens are computed, where their KV goes, and who attends to what.

Decodes are bucketed by context length, so that one very long sequence does not pad all others to its length; prefill
chunks are cut into pieces of at most `PIECE_TOKENS` queries, which bounds the attention mask.
A request with a draft (engine/speculative.py) has a row for its latest token and one for each token of the draft; requests
with drafts of one length form groups. Row order is: decodes by draft length and bucket, then prefills in plan order.
`sampled_rows` restores the order of the plan: the rows of each decode together, then one for each completed prefill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from engine_shim.model.kv_cache import head_blocks, head_slots
from engine_shim.model.llama import AttentionGroup, Llama, TokenBatch
from engine_shim.request import Request
from engine_shim.step import StepPlan

PIECE_TOKENS = 512
# Gathered keys that are attended to in one call: on a CPU they should stay in its cache (measured: 64 sequences of 400
# tokens decode twice as fast as in one piece).
CPU_GATHER_TOKENS = 2048
UNLIMITED = 1 << 62
# Sequences of up to so many blocks share a bucket: below it, padding is cheaper than another attention call.
SMALLEST_BUCKET_BLOCKS = 32


def build_batch(plan: StepPlan, block_tokens: int, model: Llama) -> TokenBatch:
    """Tensors for `plan`. Every request must hold blocks for all positions that are computed."""
    return _BatchBuilder(block_tokens, model).build(plan)


def completes_prefill(request: Request, chunk_tokens: int) -> bool:
    """Whether a chunk reaches the request's last known token, so that the next one can be sampled."""
    return request.computed_tokens + chunk_tokens == request.total_tokens


def _bucket(request: Request, block_tokens: int) -> int:
    blocks = -(-request.total_tokens // block_tokens)
    return max((blocks - 1).bit_length(), SMALLEST_BUCKET_BLOCKS.bit_length() - 1)


class _BatchBuilder:
    def __init__(self, block_tokens: int, model: Llama) -> None:
        self._block_tokens = block_tokens
        self._kv_heads = model.config.kv_heads
        self._device = device = model.device
        self._gather_tokens = CPU_GATHER_TOKENS if device.type == "cpu" else UNLIMITED
        self._dtype = model.dtype
        self._rows = 0
        self._longest = 0
        self._ids: list[int] = []
        self._positions: list[Tensor] = []
        self._slots: list[Tensor] = []
        self._groups: list[AttentionGroup] = []

    def build(self, plan: StepPlan) -> TokenBatch:
        first_row: dict[Request, int] = {}
        for requests, queries in self._decode_groups(plan):
            for place, request in enumerate(requests):
                first_row[request] = self._rows + place * queries
            self._add_decodes(requests, [plan.drafts.get(request, []) for request in requests])
        sampled: list[int] = []
        for request in plan.decode:
            first = first_row[request]
            sampled += range(first, first + 1 + len(plan.drafts.get(request, ())))
        for request, chunk_tokens in plan.prefill:
            self._add_prefill(request, chunk_tokens)
            if completes_prefill(request, chunk_tokens):
                sampled.append(self._rows - 1)
        return TokenBatch(
            ids=self._tensor(self._ids),
            positions=torch.cat(self._positions),
            longest=self._longest,
            slots=head_slots(torch.cat(self._slots), self._kv_heads, self._block_tokens),
            groups=self._groups,
            sampled_rows=self._tensor(sampled),
        )

    def _decode_groups(self, plan: StepPlan) -> Iterator[tuple[list[Request], int]]:
        """Requests that attend together, and how many tokens each computes."""
        buckets: dict[tuple[int, int], list[Request]] = {}
        for request in plan.decode:
            queries = 1 + len(plan.drafts.get(request, ()))
            buckets.setdefault((queries, _bucket(request, self._block_tokens)), []).append(request)
        for (queries, _), requests in sorted(buckets.items(), key=lambda item: item[0]):
            longest = max(request.total_tokens for request in requests)
            at_once = max(1, self._gather_tokens // longest)
            for first in range(0, len(requests), at_once):
                yield requests[first : first + at_once], queries

    def _add_decodes(self, requests: list[Request], drafts: list[list[int]]) -> None:
        """Each request's latest token, and after it the draft: all drafts have the same length."""
        queries = 1 + len(drafts[0])
        latest = self._tensor([request.total_tokens - 1 for request in requests])
        positions = latest[:, None] + torch.arange(queries, device=self._device)
        width = -(-max(request.total_tokens + queries - 1 for request in requests) // self._block_tokens)
        padded = [(r.blocks + [0] * (width - len(r.blocks)))[:width] for r in requests]
        for request, draft in zip(requests, drafts, strict=True):
            self._ids.append(request.output[-1] if request.output else request.prompt[-1])
            self._ids += draft
        self._add_group(self._tensor(padded), positions)

    def _add_prefill(self, request: Request, chunk_tokens: int) -> None:
        start, end = request.computed_tokens, request.computed_tokens + chunk_tokens
        if end <= request.prompt_tokens:
            self._ids += request.prompt[start:end]
        else:  # recomputation after a preemption: the output is part of the context
            self._ids += (request.prompt + request.output)[start:end]
        table = self._tensor(request.blocks[: -(-end // self._block_tokens)])[None]
        for first in range(start, end, PIECE_TOKENS):
            positions = torch.arange(first, min(first + PIECE_TOKENS, end), device=self._device)
            seen_blocks = -(-min(first + PIECE_TOKENS, end) // self._block_tokens)
            self._add_group(table[:, :seen_blocks], positions[None])

    def _add_group(self, table: Tensor, positions: Tensor) -> None:
        """Add sequences with their `table` [requests, blocks] and the `positions` [requests, queries] to compute."""
        requests, queries = positions.shape
        keys = torch.arange(table.shape[1] * self._block_tokens, device=self._device)
        # Numbers to add, not truth values, which attention would turn into numbers again in every layer.
        hidden = (keys > positions[:, :, None])[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -math.inf)
        self._longest = max(self._longest, len(keys))
        self._groups.append(AttentionGroup(self._rows, requests, queries, head_blocks(table, self._kv_heads), mask))
        blocks = table.gather(1, positions // self._block_tokens)
        self._positions.append(positions.flatten())
        self._slots.append((blocks * self._block_tokens + positions % self._block_tokens).flatten())
        self._rows += requests * queries

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
