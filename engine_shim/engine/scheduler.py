"""The scheduler: which tokens are computed in the next step, and who holds KV for them.

One step, in this order (`schedule`):

1. every decoding request gets its next token, and a block where its last one is full;
2. prefills under way get a chunk each, as far as the token budget goes;
3. waiting requests are admitted while max_num_seqs, budget and blocks allow, unless somebody was preempted.

Policies (policies/) decide what this leaves open: in which order requests wait and who may pass whom, who is preempted,
how much of the budget prefills may take, and whether requests may join at all in this step. What is said here of order
is that of the plain one, FIFO.

When a request that holds KV cannot get a block, the request admitted last is preempted: its blocks are freed, all its
KV must be computed again, and it goes to the front of the queue. Without chunked prefill, prompts are computed whole,
in steps of their own that come before decodes; a single prompt may then exceed the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ..kv.pool import KvPool
from ..policies import batching_for, long_prefills_for, order_for, prefill_budget_for
from ..policies.displacement import victims_for
from ..policies.waiting import WaitingQueue
from ..request import Request, Stage
from ..settings.engine import EngineSettings
from ..step import StepPlan, StopReason
from .counters import Counters
from .running import RunningRequests


class Scheduler(RunningRequests):
    """Decides step by step; owns queue, running set and pool. Not thread-safe: the engine's thread calls it."""

    def __init__(self, settings: EngineSettings, pool: KvPool, counters: Counters) -> None:
        super().__init__(settings, pool, counters)
        self.order = order_for(settings)
        self.batching = batching_for(settings)
        self.prefill_budget = prefill_budget_for(settings)
        self.long_prefills = long_prefills_for(settings)
        self.waiting = WaitingQueue()
        self._chunk_limit = settings.max_chunk_tokens or settings.max_step_tokens

    # -- the step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step at clock time `now`. The plan is empty when nothing can be computed."""
        self._now = now
        self.order.promote(self.waiting, now)
        self.batching.begin(self.running)
        plan = StepPlan()
        if self.settings.chunked_prefill:
            self._plan_mixed(plan)
        else:
            self._plan_whole_prompts(plan)
        if plan.decode:
            plan.context_tokens = self.context_tokens + len(plan.decode)
        self.batching.planned(plan)
        self.speculation.draft(plan, self)
        return plan

    def _plan_mixed(self, plan: StepPlan) -> None:
        """Decodes first, then prefills in what the budget leaves."""
        budget = self.settings.max_step_tokens
        if self.batching.decodes(self.prefilling):
            budget -= self._plan_decodes(plan)
        budget = self.prefill_budget.tokens(budget, len(plan.decode))
        first, later = self.order.split_prefills(self.prefilling, self.waiting)
        budget -= self._plan_chunks(plan, first, budget)
        plan.stop_reason = StopReason.PREEMPTED if plan.preempted else self._admit(plan, budget)
        if later:
            budget -= sum(chunk for request, chunk in plan.prefill if request in plan.admitted)
            self._plan_chunks(plan, later, budget)

    def _plan_whole_prompts(self, plan: StepPlan) -> None:
        """New prompts if there is room for any, else decodes."""
        plan.stop_reason = self._admit(plan, self.settings.max_step_tokens)
        if not plan.prefill and self.batching.decodes(self.prefilling):
            self._plan_decodes(plan)
        if plan.preempted:
            plan.stop_reason = StopReason.PREEMPTED

    def _plan_decodes(self, plan: StepPlan) -> int:
        block_tokens = self.pool.block_tokens
        full = [request for request in self.decoding if request.computed_tokens % block_tokens == 0]
        if self.followed:
            for request in full:
                self._publish(request)
        if len(full) <= self.growth_blocks:
            self.give_blocks(full, [1] * len(full))
        else:
            for request in full:
                if request.stage is Stage.DECODE:  # and not preempted for one of the others
                    self._grow(request, request.computed_tokens + 1, plan)
        plan.decode = self.decoding.copy()
        return len(plan.decode)

    def _plan_chunks(self, plan: StepPlan, requests: list[Request], budget: int) -> int:
        """Chunks for `requests`; returns the tokens planned. Behind new admissions nobody is preempted for a chunk."""
        before = budget
        for request in requests:
            chunk = min(request.total_tokens - request.computed_tokens, budget, self._chunk_limit)
            if chunk <= 0 or request.stage is not Stage.PREFILL:
                continue
            tokens = request.computed_tokens + chunk
            if plan.admitted and not self._can_grow(request, self.pool.blocks_for(tokens) - len(request.blocks)):
                continue
            if self._grow(request, tokens, plan):
                plan.prefill.append((request, chunk))
                budget -= chunk
        return before - budget

    def _admit(self, plan: StepPlan, budget: int) -> StopReason:
        while self.waiting:
            if not self.batching.admits():
                return StopReason.BATCH_RUNNING
            full = len(self.running) >= self.settings.max_num_seqs
            if budget <= 0:
                return StopReason.MAX_NUM_SEQS if full else StopReason.TOKEN_BUDGET
            index, refusal = (0, StopReason.MAX_NUM_SEQS) if full else self.next_admissible()
            if refusal is not None:
                if not self._displace(plan):
                    return refusal
                continue
            if plan.preempted and self.waiting.at(index) in plan.preempted:
                return StopReason.PREEMPTED
            chunk = self._start(index, budget, alone=not plan.prefill, plan=plan)
            if chunk is None:
                return StopReason.TOKEN_BUDGET
            budget -= chunk
        return StopReason.QUEUE_EMPTY

    def next_admissible(self) -> tuple[int, StopReason | None]:
        """Queue position of the next request to admit, or why the first that may come in cannot.

        Under "bypass", requests of the queue's window whose need is met pass a head that must wait. Those that only
        prefix hits would make fit are not found: looking them all up in every step would cost more than it gains.
        """
        first = self._first_eligible()
        if first is None:
            return 0, StopReason.LONG_PREFILLS
        refusal = self.admission.refusal(self._need_blocks(self.waiting.at(first)), len(self.running))
        if refusal is None or self.settings.admission == "fifo" or not self.waiting_fit():
            return first, refusal
        room = self._admissible_blocks()
        for index, request, need_blocks in islice(self.waiting.window(), self.order.passable(self.waiting, self._now)):
            if need_blocks <= room and self._need_blocks(request) <= room and not self._is_held_back(request):
                return index, None
        return first, refusal

    def _first_eligible(self) -> int | None:
        """Position of the first request that is not held back by the limit on long prefills; nearly always the head."""
        if not self.long_prefills.limited:
            return 0
        return next((i for i, request, _ in self.waiting.window() if not self._is_held_back(request)), None)

    def _is_held_back(self, request: Request) -> bool:
        return self.long_prefills.holds_back(request, self.prefilling)

    def displaceable(self, spared: Sequence[Request] = ()) -> list[Request]:
        """Whom the queue's head may and would displace to get in; empty if it cannot that way either."""
        head = self.waiting.head
        candidates = [request for request in self.order.outranked(head, self.running) if request not in spared]
        if not candidates or self._is_held_back(head):
            return []
        slots = self.settings.max_num_seqs
        return victims_for(self.head_need_blocks(), candidates, self.admission, len(self.running), slots)

    def _displace(self, plan: StepPlan) -> bool:
        """Preempt for the sake of the queue's head; whether anybody was. Nobody comes and goes in the same step."""
        if self.waiting.head in plan.preempted:
            return False
        victims = self.displaceable(spared=plan.admitted)
        for victim in victims:
            self._preempt(victim, plan)
        return bool(victims)

    def _start(self, index: int, budget: int, alone: bool, plan: StepPlan) -> int | None:
        """Admit the request at queue position `index`; returns its first chunk, None if the step has no room for it."""
        request = self.waiting.at(index)
        hits = self.admission.hits(request)
        cached_tokens = len(hits) * self.pool.block_tokens
        chunk = request.total_tokens - cached_tokens
        if self.settings.chunked_prefill:
            chunk = min(chunk, budget, self._chunk_limit)
        elif chunk > budget and not alone:
            return None
        self._join(index, hits, Stage.PREFILL, plan)
        self._grow(request, cached_tokens + chunk, plan)
        plan.prefill.append((request, chunk))
        return chunk

    def _join(self, index: int, hits: list[int], stage: Stage, plan: StepPlan) -> None:
        """From the queue to the running ones: it holds its prefix `hits`, and is promised what it must be sure of."""
        request, cached_tokens = self.waiting.take(index), len(hits) * self.pool.block_tokens
        promised = self.admission.promise_blocks(request, cached_tokens) if self.settings.reserve != "none" else 0
        self.pool.hold(hits)
        request.blocks = hits
        request.published_blocks = len(hits)
        request.computed_tokens = cached_tokens
        self.written_tokens += cached_tokens
        if not request.preemptions:
            request.cached_tokens = cached_tokens
            self.counters.cached_tokens += cached_tokens
        self.counters.prompt_tokens += max(0, min(cached_tokens, request.prompt_tokens) - request.computed_peak_tokens)
        self.admission.promise(request, promised)
        self.running.append(request)
        self.prefilling.append(request)
        request.enter(stage, self._now)
        plan.admitted.append(request)

    # -- blocks -----------------------------------------------------------------------------------------------------

    def _grow(self, request: Request, tokens: int, plan: StepPlan) -> bool:
        """Give `request` blocks for `tokens` tokens in all, preempting for it; False if it had to go itself."""
        missing = self.pool.blocks_for(tokens) - len(request.blocks)
        if missing <= 0:
            return True
        while not self._can_grow(request, missing):
            victim = self.pool.in_the_way(request, self.running) or self._victim()
            self._preempt(victim, plan)
            if victim is request:
                return False
        promised = min(missing, self.admission.outstanding_blocks(request))
        request.blocks += self.pool.take(missing, request.blocks, request.reserved_blocks)
        self.admission.reserved_blocks -= promised
        return True

    def _victim(self) -> Request:
        return self.order.victim(self.running)

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        if request.stage is Stage.DECODE and request in plan.decode:
            plan.decode.remove(request)
        plan.prefill = [planned for planned in plan.prefill if planned[0] is not request]
        request.preemptions += 1
        request.computed_peak_tokens = max(request.computed_peak_tokens, request.computed_tokens)
        self._publish(request, own=True)
        self._let_go(request)
        request.computed_tokens = 0
        request.enter(Stage.REQUEUE, self._now)
        self.order.requeue(self.waiting, request, self.admission.promise_blocks(request))
        self.counters.preempted += 1
        plan.preempted.append(request)

    def complete(self, plan: StepPlan, tokens: list[int], now: float) -> list[Request]:
        """See RunningRequests; the prefill budget learns how long the step took."""
        self.prefill_budget.measured(plan, now - self._now)
        return super().complete(plan, tokens, now)

    # -- coming and going -------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """Queue a request at clock time `now`."""
        self.followed += _is_followed(request)
        request.enter(Stage.QUEUE, now)
        self.order.enqueue(self.waiting, request, self.admission.promise_blocks(request))

    def finish(self, request: Request, reason: str, now: float) -> None:
        """Remove a request that waits or runs; `reason` as in Request.finish_reason."""
        if request.stage in (Stage.PREFILL, Stage.DECODE, Stage.TRANSFER):
            self._publish(request)
            self._let_go(request)
        else:
            self.waiting.remove(request)
        self.followed -= _is_followed(request)
        self.speculation.forget(request)
        request.finish_reason = reason
        request.finished_at = now
        request.enter(Stage.FINISHED, now)

    def requests(self) -> Iterator[Request]:
        """All requests in the engine: the running ones in order of admission, then the queue."""
        yield from self.running
        yield from self.waiting

    @property
    def kv_transfers(self) -> int:
        """Requests whose KV has to be moved; there are some where prefill and decode are apart (disaggregated/)."""
        return 0

    # -- what the records say ---------------------------------------------------------------------------------------

    def head_need_blocks(self) -> int:
        """Blocks that the head of the queue asks for, prefix hits considered; 0 if nobody waits."""
        return self._need_blocks(self.waiting.head) if self.waiting else 0

    def waiting_fit(self) -> int:
        """How many of the first 256 that wait would be given their blocks now, each alone, whatever their order."""
        return self.waiting.fits(self._admissible_blocks())

    def _need_blocks(self, request: Request) -> int:
        return self.admission.need_blocks(request, self.admission.hits(request))

    def _admissible_blocks(self) -> int:
        available = self.admission.available_blocks - self.admission.watermark_blocks(len(self.running))
        return self.pool.largest_run(available)


def _is_followed(request: Request) -> bool:
    return bool(request.prompt) or request.listener is not None
