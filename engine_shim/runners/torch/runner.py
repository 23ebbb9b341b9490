"""The runner that computes: a step is one forward pass over the paged KV cache, and takes the time that it takes."""

from __future__ import annotations

from itertools import islice

import torch

from engine_shim.clock import Clock
from engine_shim.engine.speculative import accepted_of
from engine_shim.model.kv_cache import new_kv_cache
from engine_shim.model.llama import Llama
from engine_shim.model.sampling import GREEDY, Sampling, choose
from engine_shim.request import Request
from engine_shim.runners.torch.batch import build_batch, completes_prefill
from engine_shim.step import StepPlan


class TorchRunner:
    """Runs step plans on CPU or CUDA. Not thread-safe: the thread that steps the engine owns it.

    `blocks` × `block_tokens` token slots are allocated at once; the scheduler hands out block numbers below `blocks`.
    `kv_type` says what keys and values are stored in (model/kv_cache.py); the type of the weights if empty.
    """

    def __init__(self, model: Llama, blocks: int, block_tokens: int, clock: Clock, kv_type: str = "") -> None:
        self.model = model
        self._block_tokens = block_tokens
        self._clock = clock
        self._kv_cache = new_kv_cache(model.config, blocks, block_tokens, model.dtype, str(model.device), kv_type)

    @property
    def kv_cache_bytes(self) -> int:
        """Memory of the paged pool."""
        return self._kv_cache.nbytes

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """Compute the step; ids as `Runner.run` orders them, and the elapsed seconds."""
        begun_at = self._clock.now()
        if not plan.decode and not plan.prefill:
            return [], 0.0
        ids = self._chosen(plan, self.logits(plan))
        if not ids and self.model.device.type == "cuda":
            torch.cuda.synchronize()  # nothing was read back: without this the step would seem to take no time
        if plan.drafts:
            ids = _settle(plan, ids)
        return ids, self._clock.now() - begun_at

    def _chosen(self, plan: StepPlan, logits: torch.Tensor) -> list[int]:
        """A token for each row of `logits`."""
        sampled = plan.decode + [request for request, tokens in plan.prefill if completes_prefill(request, tokens)]
        if not plan.drafts:
            return choose(logits, [_wish(r) for r in sampled], [r.output_tokens for r in sampled]) if sampled else []
        rows = [(r, place) for r in sampled for place in range(1 + len(plan.drafts.get(r, ())))]
        return choose(logits, [_wish(r) for r, _ in rows], [r.output_tokens + place for r, place in rows])

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Next-token logits of the requests that `run` would sample for, float32 [rows, vocab].

        A row for each request; for one with a draft, a row for its latest token and one for each of the draft's.
        """
        with torch.inference_mode():
            return self.model.logits(build_batch(plan, self._block_tokens, self.model), self._kv_cache)


def _wish(request: Request) -> Sampling:
    return request.sampling if isinstance(request.sampling, Sampling) else GREEDY


def _settle(plan: StepPlan, chosen: list[int]) -> list[int]:
    """Ids as `Runner.run` orders them; what the drafts add goes into `plan.accepted`."""
    ids, rows = [], iter(chosen)
    for request in plan.decode:
        draft = plan.drafts.get(request, [])
        own = list(islice(rows, 1 + len(draft)))
        ids.append(own[0])
        if draft:
            plan.accepted[request] = accepted_of(own, draft)
    return [*ids, *rows]
