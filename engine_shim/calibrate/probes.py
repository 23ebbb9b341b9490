"""The steps that a calibration runs: lone decodes, batches of them, prefills early and late in a prompt, and mixtures of
all lengths as they come in service.

A probe is one step of given token counts. Its requests are made up, with blocks of their own, so that a runner computes
what it would in service; what their KV holds does not matter for the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..request import Request, Stage
from ..runners.modelled.runner import DEMAND_FIELDS
from ..step import StepPlan

_CONTEXTS = (16, 64, 256, 1024)
_BATCHES = (1, 2, 4, 8, 16, 32)
_CHUNKS = (8, 32, 128, 512)
_STARTS = (0, 256, 1024)
_MIXTURES = 30


def demand_of(plan: StepPlan) -> tuple[float, ...]:
    """DEMAND_FIELDS of a step."""
    chunks = [(request.computed_tokens, chunk) for request, chunk in plan.prefill]
    completed = sum(request.computed_tokens + chunk == request.total_tokens for request, chunk in plan.prefill)
    values = {
        "tokens": len(plan.decode) + sum(chunk for _, chunk in chunks),
        "samples": len(plan.decode) + completed,
        "pairs": plan.context_tokens + sum(chunk * start + chunk * (chunk + 1) // 2 for start, chunk in chunks),
        "read_tokens": plan.context_tokens + sum(start + chunk for start, chunk in chunks),
        "sequences": len(plan.decode) + len(chunks),
        "prefills": len(chunks),
    }
    return tuple(float(values[name]) for name in DEMAND_FIELDS)


@dataclass(frozen=True, slots=True)
class Probe:
    """One step: a decode for each context length (the new token included), a prefill for each (start, tokens)."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def kv_tokens(self) -> list[int]:
        """KV that each request holds after the step."""
        return [*self.contexts, *(start + tokens for start, tokens in self.chunks)]

    def blocks(self, block_tokens: int) -> int:
        """Blocks that the requests hold together."""
        return sum(-(-tokens // block_tokens) for tokens in self.kv_tokens)

    def demand(self) -> tuple[float, ...]:
        """DEMAND_FIELDS of the step."""
        return demand_of(self.plan(16, 2))

    def plan(self, block_tokens: int, vocab: int) -> StepPlan:
        """The step for a runner. Prefills complete their prompts, so that each yields a token."""
        plan = StepPlan(context_tokens=sum(self.contexts))
        next_block = 0
        for index, tokens in enumerate(self.kv_tokens):
            chunk = 1 if index < len(self.contexts) else self.chunks[index - len(self.contexts)][1]
            request = Request(
                f"probe-{index}", tokens, 1, 0.0, 1, prompt=[(index * 31 + k) % vocab for k in range(tokens)]
            )
            count = -(-tokens // block_tokens)
            request.blocks = list(range(next_block, next_block + count))
            next_block += count
            request.computed_tokens = tokens - chunk
            if index < len(self.contexts):
                request.stage = Stage.DECODE
                plan.decode.append(request)
            else:
                request.stage = Stage.PREFILL
                plan.prefill.append((request, chunk))
        return plan


def probes(most_tokens: int, most_context: int) -> list[Probe]:
    """Probes whose KV fits `most_tokens` token slots in all and `most_context` in one request."""
    found = [Probe(contexts=(context,) * batch) for context in _CONTEXTS for batch in _BATCHES]
    found += [Probe(chunks=((start, tokens),)) for tokens in _CHUNKS for start in _STARTS]
    found += [Probe(chunks=((0, 64),) * count) for count in (2, 4, 8)]
    found += [
        Probe(contexts=(context,) * batch, chunks=((0, tokens),))
        for context, batch in ((64, 4), (256, 8), (1024, 4), (128, 24))
        for tokens in (32, 256)
    ]
    found += [Probe(contexts=tuple(40 + 97 * k % 700 for k in range(batch))) for batch in (6, 12, 24)]
    found += _as_in_service(_MIXTURES)
    return [p for p in found if max(p.kv_tokens) <= most_context and sum(p.kv_tokens) <= most_tokens]


def _as_in_service(count: int) -> list[Probe]:
    """Decodes of many context lengths, beside no, one or two chunks that begin anywhere in their prompts."""
    draw, found = random.Random(0), []
    for _ in range(count):
        contexts = tuple(int(draw.uniform(3, 30) ** 2) for _ in range(draw.randint(1, 20)))
        chunks = tuple((draw.choice((0, 16, 200, 500)), draw.randint(5, 250)) for _ in range(draw.choice((0, 1, 1, 2))))
        found.append(Probe(contexts, chunks))
    return found
