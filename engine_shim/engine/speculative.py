"""Speculative decoding with n-gram drafts: guess the next tokens from the request's own text, check them in one step.

A draft is what followed the last occurrence of the request's latest n tokens. The step then computes the next token
and, for each token of the draft, the one after it. Position by position the model's own choice counts: as long as the
draft said the same, the next choice stands on a true context and is kept too; the first that differs is kept as the
correction, and what comes after it is thrown away. A step so yields 1 to 1 + drafted tokens of a request, and the
output is, token for token, that without speculation. That holds for sampling as well, because a token's random number
depends on seed and index only (model/sampling.py).

Drafts take what a step leaves over, tokens of its budget and free blocks, and never preempt anybody. The KV of rejected
positions stays in the request's blocks and is overwritten; blocks that reach beyond its tokens go back at the step's
end, so that between steps a request holds what it would hold without speculation.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from ..request import Request
from ..settings.engine import EngineSettings
from ..step import StepPlan
from .ngram import NgramIndex


@dataclass(slots=True)
class SpeculationCounts:
    """Since the engine's start. `accepted_at[i]` counts drafts whose token i (from 0) was accepted."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def book(self, drafted: int, accepted: int) -> None:
        """One draft and what came of it."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        for position in range(accepted):
            self.accepted_at[position] += 1


class Books(Protocol):
    """What drafts ask of those who keep the books of running requests (running.py)."""

    def growth_tokens(self, request: Request) -> int:
        """Tokens that it may add before somebody must be preempted for it."""
        ...

    def give_draft_blocks(self, request: Request, tokens: int) -> None:
        """Blocks for so many tokens beyond those computed."""
        ...

    def take_draft_blocks(self, request: Request) -> None:
        """Take back what reaches beyond its tokens."""
        ...

    def book_accepted(self, request: Request, token: int, done: list[Request]) -> None:
        """One more token of its output; append the request to `done` if it finishes with it."""
        ...


class Speculation(Protocol):
    """What is asked at the end of planning a step, and of booking it."""

    drafts: bool  # whether it ever does
    counts: SpeculationCounts
    planned_tokens: int  # of drafts, in the latest plan

    def draft(self, plan: StepPlan, books: Books) -> None:
        """Add drafts for requests of `plan.decode`."""
        ...

    def complete(self, plan: StepPlan, books: Books, done: list[Request]) -> None:
        """Book the tokens that were accepted beyond the first of each request; append to `done` those that finish."""
        ...

    def forget(self, request: Request) -> None:
        """The request has left the engine."""
        ...


class NoSpeculation:
    """A token a step."""

    drafts = False
    planned_tokens = 0

    def __init__(self) -> None:
        self.counts = SpeculationCounts()

    def draft(self, plan: StepPlan, books: Books) -> None:
        """None."""

    def complete(self, plan: StepPlan, books: Books, done: list[Request]) -> None:
        """Nothing was drafted."""

    def forget(self, request: Request) -> None:
        """Nothing is known of it."""


class NgramSpeculation:
    """Drafts by n-gram lookup; `speculative_noise` of their tokens are replaced by others."""

    drafts = True

    def __init__(self, settings: EngineSettings) -> None:
        self._tokens = settings.speculative_tokens
        self._noise = settings.speculative_noise
        self._vocab = settings.shape.vocab
        self._step_tokens = settings.max_step_tokens
        self._indexes: dict[Request, NgramIndex] = {}
        self.counts = SpeculationCounts(accepted_at=[0] * settings.speculative_tokens)
        self.planned_tokens = 0

    def draft(self, plan: StepPlan, books: Books) -> None:
        """See Speculation."""
        budget = self._step_tokens - len(plan.decode) - sum(chunk for _, chunk in plan.prefill)
        for request in plan.decode:
            tokens = min(self._tokens, budget, request.max_tokens - request.output_tokens - 1)
            tokens = min(tokens, books.growth_tokens(request) - 1)
            guessed = self._guess(request, tokens) if tokens > 0 else []
            if guessed:
                plan.drafts[request] = guessed
                budget -= len(guessed)
                books.give_draft_blocks(request, 1 + len(guessed))
        self.planned_tokens = sum(map(len, plan.drafts.values()))

    def _guess(self, request: Request, tokens: int) -> list[int]:
        if not request.prompt:
            return [0] * tokens  # modelled: nobody knows the text, the runner decides what is accepted
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = NgramIndex(request.prompt)
        index.extend(request.output)
        guessed = index.following(tokens)
        return self._disturbed(request, guessed) if self._noise else guessed

    def _disturbed(self, request: Request, guessed: list[int]) -> list[int]:
        rng = random.Random(f"{request.id}:{request.output_tokens}")
        return [
            (token + rng.randrange(1, self._vocab)) % self._vocab if rng.random() < self._noise else token
            for token in guessed
        ]

    def complete(self, plan: StepPlan, books: Books, done: list[Request]) -> None:
        """See Speculation."""
        for request, drafted in plan.drafts.items():
            accepted = plan.accepted.get(request, [])
            self.counts.book(len(drafted), len(accepted))
            for token in accepted:
                if request.output_tokens >= request.stop_after:
                    break  # it ended with an earlier token: what follows was never asked for
                books.book_accepted(request, token, done)
            books.take_draft_blocks(request)

    def forget(self, request: Request) -> None:
        """See Speculation."""
        self._indexes.pop(request, None)


def speculation_for(settings: EngineSettings) -> Speculation:
    """What `settings.speculative` asks for."""
    return NoSpeculation() if settings.speculative == "none" else NgramSpeculation(settings)


def accepted_of(chosen: list[int], draft: list[int]) -> list[int]:
    """The tokens kept beyond the first: `chosen` are the model's own, after the true context and after each draft token.

    The first of `chosen` is always right. The next one is where the draft's first token equals it, and so on.
    """
    kept = next((i for i, token in enumerate(draft) if chosen[i] != token), len(draft))
    return chosen[1 : kept + 1]


def modelled_acceptance(request: Request, drafted: int, settings: EngineSettings) -> int:
    """How many of `drafted` tokens a modelled request accepts: each with the same chance, if those before it were.

    The chance is the request's or else the settings', less the share of noise. The outcome is the same for the same
    request and output length, whoever else is in the batch.
    """
    own = request.draft_acceptance
    ratio = (settings.speculative_acceptance if math.isnan(own) else own) * (1 - settings.speculative_noise)
    if ratio >= 1:
        return drafted
    if ratio <= 0:
        return 0
    number = _uniform(crc32(request.id.encode()) << 32 | request.output_tokens)
    return min(drafted, int(math.log(number) / math.log(ratio)))


def _uniform(key: int) -> float:
    """A number in (0, 1] from a 64-bit key: SplitMix64's finalizer, a hundred times faster than a seeded generator."""
    mask = (1 << 64) - 1
    key = (key + 0x9E3779B97F4A7C15) & mask
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
    return ((key ^ (key >> 31)) + 1) / (1 << 64)
