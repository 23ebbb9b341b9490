"""The requests that run: who holds KV, in which blocks, and how far each one is. The scheduler decides about them.

Between two steps every running request has `computed_tokens` in its blocks; a decoding one has exactly one token more
than that, whose KV the next step writes. Invariant: reserved blocks are never more than the free ones.
"""

from __future__ import annotations

from ..kv.admission import Admission
from ..kv.pool import KvPool
from ..kv.prefix import block_keys
from ..request import Request, Stage
from ..settings.engine import EngineSettings
from ..step import StepPlan
from .counters import Counters
from .speculative import speculation_for


class RunningRequests:
    """Keeps the books of the running set and of its blocks; sums are kept as they change, not counted anew."""

    def __init__(self, settings: EngineSettings, pool: KvPool, counters: Counters) -> None:
        self.settings = settings
        self.pool = pool
        self.counters = counters
        self.admission = Admission(settings, pool)
        self.running: list[Request] = []  # in order of admission
        self.decoding: list[Request] = []  # those of `running` whose prefill is complete
        self.prefilling: list[Request] = []  # the others
        self.written_tokens = 0  # KV tokens of all running requests, a shared block counted for each
        self.context_tokens = 0  # the same, over the decoding ones only
        self.followed = 0  # requests here whose single tokens somebody wants: real ones, and those with a listener
        # Output is promised at admission only where max_tokens are reserved.
        self._growth_is_promised = settings.reserve == "max_tokens"
        self.speculation = speculation_for(settings)
        self._now = 0.0

    # -- blocks -----------------------------------------------------------------------------------------------------

    @property
    def growth_blocks(self) -> int:
        """Blocks that decoding requests can surely get before one must be preempted, whichever of them asks."""
        if not self.pool.interchangeable:
            return 0
        return self.pool.free_blocks if self._growth_is_promised else self.admission.available_blocks

    def give_blocks(self, requests: list[Request], counts: list[int]) -> None:
        """Give decoding `requests` so many more blocks; the caller knows that `growth_blocks` are enough."""
        total = sum(counts)
        blocks = self.pool.take(total)
        if self._growth_is_promised:
            self.admission.reserved_blocks -= total
        for request, count in zip(requests, counts, strict=True):
            request.blocks += blocks[:count]
            del blocks[:count]

    def growth_tokens(self, request: Request) -> int:
        """Tokens that a decoding request may add to those computed before somebody must be preempted for it."""
        blocks = len(request.blocks) + self.growth_blocks
        return blocks * self.pool.block_tokens - request.computed_tokens

    def give_draft_blocks(self, request: Request, tokens: int) -> None:
        """Blocks for `tokens` tokens beyond those computed; the caller knows that growth_tokens are enough."""
        missing = self.pool.blocks_for(request.computed_tokens + tokens) - len(request.blocks)
        if missing > 0:
            self.give_blocks([request], [missing])

    def take_draft_blocks(self, request: Request) -> None:
        """Take back what reaches beyond a decoding request's tokens: it was given for a draft that was wrong."""
        kept = self.pool.blocks_for(request.computed_tokens)
        spare = request.blocks[kept:]
        if spare:
            del request.blocks[kept:]
            self.pool.release(spare)
            if self._growth_is_promised:
                self.admission.reserved_blocks += len(spare)

    def _can_grow(self, request: Request, blocks: int) -> bool:
        """Whether there are `blocks` more for a request that runs, without a preemption."""
        unpromised = blocks - min(blocks, self.admission.outstanding_blocks(request))
        return self.pool.room_for(unpromised, request.blocks, self.admission.available_blocks)

    def _let_go(self, request: Request) -> None:
        """Take a request out of the running set and free what it holds."""
        self.running.remove(request)
        if request.stage is Stage.DECODE:
            self.decoding.remove(request)
            self.context_tokens -= request.computed_tokens
        else:
            self.prefilling.remove(request)
        self.written_tokens -= request.computed_tokens
        self.admission.withdraw(request)
        self.pool.release(request.blocks)
        request.blocks = []
        request.published_blocks = 0

    def _publish(self, request: Request, own: bool = False) -> None:
        """Offer the request's full blocks for reuse; a modelled request's `own` ones only it can find again."""
        if not self.settings.prefix_cache or not (request.prompt or request.prefix_key or own):
            return
        full = request.computed_tokens // self.pool.block_tokens
        if full > request.published_blocks:
            keys = block_keys(request, full, self.pool.block_tokens, own)
            for index in range(request.published_blocks, len(keys)):
                self.pool.publish(request.blocks[index], keys[index])
            request.published_blocks = max(request.published_blocks, len(keys))

    # -- progress ---------------------------------------------------------------------------------------------------

    def complete(self, plan: StepPlan, tokens: list[int], now: float) -> list[Request]:
        """Book a step that ended at `now` with the runner's `tokens`; returns the requests that finish with it."""
        self._now = now
        done: list[Request] = []
        if self.followed:
            for request, token in zip(plan.decode, tokens, strict=False):
                request.computed_tokens += 1
                self._book_token(request, token, done)
        else:
            for request in plan.decode:
                request.computed_tokens += 1
                request.output_tokens = generated = request.output_tokens + 1
                request.last_token_at = now
                if generated >= request.stop_after:
                    done.append(request)
        decoded = len(plan.decode)
        self.written_tokens += decoded
        self.context_tokens += decoded
        self.counters.generated_tokens += decoded
        if plan.drafts:
            self.speculation.complete(plan, self, done)
        if plan.prefill:
            self._complete_chunks(plan, tokens[decoded:], done)
        return self._finish_all(done, now)

    def advance_decodes(self, requests: list[Request], steps: int, now: float) -> list[Request]:
        """Book `steps` decodes of each of `requests`, the last at `now`; the caller knows that there are blocks."""
        block_tokens = self.pool.block_tokens
        done: list[Request] = []
        growing, counts = [], []
        for request in requests:
            request.computed_tokens = computed = request.computed_tokens + steps
            request.output_tokens = generated = request.output_tokens + steps
            request.last_token_at = now
            missing = -(-computed // block_tokens) - len(request.blocks)
            if missing:
                growing.append(request)
                counts.append(missing)
            if generated >= request.stop_after:
                done.append(request)
        self.give_blocks(growing, counts)
        tokens = steps * len(requests)
        self.written_tokens += tokens
        self.context_tokens += tokens
        self.counters.generated_tokens += tokens
        return self._finish_all(done, now)

    def _finish_all(self, done: list[Request], now: float) -> list[Request]:
        for request in done:
            self.finish(request, "length" if request.output_tokens >= request.max_tokens else "stop", now)
        return done

    def _complete_chunks(self, plan: StepPlan, tokens: list[int], done: list[Request]) -> None:
        sampled = iter(tokens)
        for request, chunk in plan.prefill:
            self._count_computed(request, chunk)
            request.computed_tokens += chunk
            self.written_tokens += chunk
            if request.computed_tokens < request.total_tokens:
                continue
            self.prefilling.remove(request)
            self.decoding.append(request)
            self.context_tokens += request.computed_tokens
            if not request.output_tokens:
                request.first_token_at = self._now
            request.enter(Stage.DECODE, self._now)
            self.counters.generated_tokens += 1
            self._book_token(request, next(sampled), done)
        for request, _ in plan.prefill:
            self._publish(request)

    def book_accepted(self, request: Request, token: int, done: list[Request]) -> None:
        """One more token for a decoding request in the same step: the KV of the token before it is there already."""
        request.computed_tokens += 1
        self.written_tokens += 1
        self.context_tokens += 1
        self.counters.generated_tokens += 1
        if request.computed_tokens % self.pool.block_tokens == 0:
            self._publish(request)
        self._book_token(request, token, done)

    def _count_computed(self, request: Request, chunk: int) -> None:
        """Split a chunk into tokens computed before, which a preemption threw away, and new ones."""
        start, peak = request.computed_tokens, request.computed_peak_tokens
        repeated = max(0, min(start + chunk, peak) - start)
        request.recomputed_tokens += repeated
        self.counters.recomputed_tokens += repeated
        self.counters.prompt_tokens += max(0, min(start + chunk, request.prompt_tokens) - max(start, peak))

    def _book_token(self, request: Request, token: int, done: list[Request]) -> None:
        """One more token of the output; the listener may lower `stop_after` when it hears of it."""
        request.output_tokens += 1
        request.last_token_at = self._now
        if request.prompt:
            request.output.append(token)
        if request.listener is not None:
            request.listener.on_token(request, token)
        if request.output_tokens >= request.stop_after:
            done.append(request)

    def finish(self, request: Request, reason: str, now: float) -> None:
        """Remove a request; `reason` as in Request.finish_reason."""
        raise NotImplementedError
