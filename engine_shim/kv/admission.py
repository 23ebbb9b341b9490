"""Admission: what a waiting request must be promised before it may hold KV, and why it is turned away.

`reserve` says what must fit: "none", the first prefill chunk; "prompt", the whole prompt (and what a preempted request
had generated); "max_tokens", the prompt and all the output that the client allows. What is promised beyond the blocks
held stays reserved. `watermark_ratio` of the pool is kept free, unless nothing runs: an empty engine holds nobody back.
"""

from __future__ import annotations

from ..request import Request
from ..settings.engine import EngineSettings
from ..step import StopReason
from .pool import KvPool
from .prefix import block_keys


class Admission:
    """Answers what a request needs and whether it may come in. `reserved_blocks` are promised and not held yet."""

    def __init__(self, settings: EngineSettings, pool: KvPool) -> None:
        self._pool = pool
        self._reserve = settings.reserve
        self._prefix_cache = settings.prefix_cache
        self._first_chunk_tokens = _first_chunk_limit(settings)
        self._watermark_blocks = int(settings.watermark_ratio * pool.total_blocks)
        self.reserved_blocks = 0

    @property
    def available_blocks(self) -> int:
        """Free blocks that nobody has been promised."""
        return self._pool.free_blocks - self.reserved_blocks

    def watermark_blocks(self, running: int) -> int:
        """Blocks kept free at admission while `running` requests hold KV."""
        return self._watermark_blocks if running else 0

    def hits(self, request: Request) -> list[int]:
        """Blocks of the prefix cache that the request can start from. At least its last token is left to compute."""
        if not self._prefix_cache or not (request.prompt or request.prefix_key or request.preemptions):
            return []
        full = (request.total_tokens - 1) // self._pool.block_tokens
        return self._pool.match(block_keys(request, full, self._pool.block_tokens, own=request.preemptions > 0))

    def promise_blocks(self, request: Request, cached_tokens: int = 0) -> int:
        """Blocks in all that the request must be sure of, whoever holds them now."""
        if self._reserve == "none":
            tokens = min(request.total_tokens, cached_tokens + self._first_chunk_tokens)
        elif self._reserve == "prompt":
            tokens = request.total_tokens
        else:
            tokens = request.prompt_tokens + request.max_tokens
        return self._pool.blocks_for(tokens)

    def need_blocks(self, request: Request, hits: list[int]) -> int:
        """Free blocks that admitting the request uses up or reserves; blocks that others hold already cost nothing."""
        shared = len(hits) - self._pool.idle_among(hits)
        return self.promise_blocks(request, len(hits) * self._pool.block_tokens) - shared

    def refusal(self, need_blocks: int, running: int) -> StopReason | None:
        """Why a request with this need cannot come in now; None if it can."""
        free = self._pool.free_blocks
        if need_blocks > free:
            return StopReason.NO_BLOCKS
        if need_blocks > free - self.reserved_blocks:
            return StopReason.RESERVATION
        if need_blocks > self._pool.largest_run(free - self.reserved_blocks):
            return StopReason.NO_BLOCKS
        if need_blocks > free - self.reserved_blocks - self.watermark_blocks(running):
            return StopReason.WATERMARK
        return None

    def promise(self, request: Request, blocks: int) -> None:
        """Reserve up to `blocks` in all for a request that holds some of them already."""
        request.reserved_blocks = blocks
        self.reserved_blocks += self.outstanding_blocks(request)

    def outstanding_blocks(self, request: Request) -> int:
        """Blocks that the request has been promised and does not hold yet."""
        return max(0, request.reserved_blocks - len(request.blocks))

    def withdraw(self, request: Request) -> None:
        """Cancel what is left of a promise, before the blocks are released: the request ends or is preempted."""
        self.reserved_blocks -= self.outstanding_blocks(request)
        request.reserved_blocks = 0


def _first_chunk_limit(settings: EngineSettings) -> int:
    if not settings.chunked_prefill:
        return settings.max_model_len  # prompts are computed whole
    return settings.max_chunk_tokens or settings.max_step_tokens
