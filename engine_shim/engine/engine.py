"""The engine: one scheduler, one runner, one clock, one voice. It owns requests from arrival to their last token.

`add` and `abort` may be called from any thread; they are taken in between steps, as in real engines, so a request that
arrives during a step waits for that step's end before it is even queued. `step` belongs to a single thread. A finished
request is handed to telemetry and its listener, and forgotten: memory depends on what is in flight, not on what was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..clock import Clock, VirtualClock
from ..kv.pool import KvPool, new_pool
from ..protection.protection import protection_for
from ..protection.refusal import DEADLINE, OTHER, QUEUE_FULL, TOO_LONG, Refusal
from ..request import Request, Stage
from ..settings.engine import EngineSettings
from ..step import STEP_FIELDS, Runner, StepPlan, Telemetry
from .counters import Counters
from .scheduler import Scheduler
from .step_extras import extra_fields

_ENDED_AT = STEP_FIELDS.index("ended_at")
_TOTALS = slice(STEP_FIELDS.index("arrived_total"), STEP_FIELDS.index("cached_tokens_total") + 1)
HEAD_ROWS = 16  # of the queue, in the request table whatever else is cut


class RequestRejected(ValueError):  # noqa: N818 - an answer to the client, not a failure
    """The request can never be served, or not now. The message says why, for the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class OpenStep:
    """A step that has begun: what is planned, and its record (STEP_FIELDS, ended_at still 0)."""

    plan: StepPlan
    record: list[float]
    readings: dict[str, float] | None = None  # of a modelled device, while the step runs


class Engine:
    """Runs `settings` with `runner` over a pool of `pool_blocks` blocks.

    `epoch` counts lives, from 1; `up` is False between a crash and the next `start`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        pool_blocks: int,
        runner: Runner,
        clock: Clock,
        telemetry: Telemetry,
        new_scheduler: Callable[[EngineSettings, KvPool, Counters], Scheduler] = Scheduler,
    ) -> None:
        self.settings = settings
        self.pool_blocks = pool_blocks
        self.runner: Any = runner
        self.clock = clock
        self.telemetry = telemetry
        self.epoch = 0
        self._inbox: deque[Request] = deque()
        self._aborts: deque[str] = deque()
        self._extra_fields = extra_fields(settings)
        self._new_scheduler = new_scheduler
        self.start()

    def start(self) -> None:
        """Begin a life: empty cache and queue, counters at zero."""
        self.up = True
        self.epoch += 1
        self.started_at = self.clock.now()
        self.counters = Counters()
        self.pool = new_pool(self.settings, self.pool_blocks)
        self.scheduler = self._new_scheduler(self.settings, self.pool, self.counters)
        self.protection = protection_for(self.settings)
        self.open: OpenStep | None = None
        self._requests: dict[str, Request] = {}
        self._steps = 0
        self._showed_work = False  # whether the last record had running or waiting requests

    # -- from any thread --------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Hand in a request. RequestRejected if it is turned away; it is counted and reported all the same."""
        request.stop_after = min(request.stop_after, request.max_tokens)
        refusal = self._why_never(request) or self.protection.refusal(request, self.clock.now())
        if refusal is None:
            self.protection.joined(request)
        else:
            request.finish_reason, request.rejected_for = "rejected", refusal.reason
        self._inbox.append(request)
        if refusal is not None:
            raise RequestRejected(refusal)

    def let_in(self, request: Request) -> None:
        """Hand in a request that nobody has checked: what a front end does that does not look at sizes.

        It comes before the others since the last step: they came while this one was on its way.
        """
        self.protection.joined(request)
        self._inbox.appendleft(request)

    def abort(self, request_id: str) -> None:
        """The client has gone: stop the request between two steps. Unknown ids are ignored: it may have just ended."""
        self._aborts.append(request_id)

    def has_mail(self) -> bool:
        """Whether something was handed in since the last step."""
        return bool(self._inbox or self._aborts)

    def _why_never(self, request: Request) -> Refusal | None:
        tokens = request.prompt_tokens + request.max_tokens
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            return Refusal(OTHER, "a request needs at least one prompt token and one output token")
        if len(self._inbox) + len(self.scheduler.waiting) >= self.settings.max_waiting:
            return Refusal(QUEUE_FULL, f"the queue is full ({self.settings.max_waiting} requests)")
        if self.settings.accept_oversized:
            return None
        if tokens > self.settings.max_model_len:
            most = self.settings.max_model_len
            return Refusal(TOO_LONG, f"prompt and max_tokens make {tokens} tokens, more than the model's {most}")
        if self.pool.blocks_for(tokens) > self.pool_blocks:
            pool_tokens = self.pool_blocks * self.pool.block_tokens
            return Refusal(
                TOO_LONG, f"prompt and max_tokens make {tokens} tokens, more than the KV pool's {pool_tokens}"
            )
        return None

    # -- the step ---------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one step; whether there was something to compute. In virtual time the clock moves to the step's end."""
        open_step = self.begin()
        if open_step is None:
            return False
        self.telemetry.step_begun(open_step.record)
        tokens, seconds = self.runner.run(open_step.plan)
        if isinstance(self.clock, VirtualClock):
            self.clock.advance_to(self.clock.now() + seconds)
        self.complete(tokens)
        self.telemetry.step_ended(open_step.record)
        return bool(open_step.plan.decode or open_step.plan.prefill)

    def begin(self) -> OpenStep | None:
        """Take in mail and plan the next step.

        None if there is nothing to say. A step without tokens is one that could schedule nobody although requests wait,
        or the last one of a busy spell: without it, readers of the records would believe the engine still at work.
        """
        now = self.clock.now()
        if self._inbox or self._aborts:
            self.take_in(now)
        for request in self.protection.expired(now):
            self._turn_away(request, now)
        plan = self.scheduler.schedule(now)
        self.protection.planned(plan, len(self.scheduler.running), len(self.scheduler.waiting), now)
        for request in plan.preempted:
            self.telemetry.stage_changed(request, Stage.REQUEUE, now)
        for request in plan.admitted:
            self.telemetry.stage_changed(request, request.stage, now)
        busy = bool(self.scheduler.running or self.scheduler.waiting)
        if not busy and not self._showed_work:
            return None
        self._showed_work = busy
        self._steps += 1
        self.open = OpenStep(plan, self.record(plan, now))
        return self.open

    def complete(self, tokens: list[int]) -> None:
        """End the open step now, with what the runner returned."""
        open_step, now = self.open, self.clock.now()
        if open_step is None:
            raise RuntimeError("no step has begun")
        self.open = None
        plan = open_step.plan
        done = self.scheduler.complete(plan, tokens, now)
        for request, _ in plan.prefill:
            if request.stage is Stage.DECODE:
                self.telemetry.stage_changed(request, Stage.DECODE, now)
        self.leave(done)
        open_step.record[_ENDED_AT] = now
        open_step.record[_TOTALS] = self.counters.row()

    def leave(self, done: list[Request]) -> None:
        """Report requests that have finished, and forget them."""
        for request in done:
            del self._requests[request.id]
            self.counters.finished += 1
            self._report(request)

    def _report(self, request: Request) -> None:
        self.protection.left(request, request.finished_at)
        self.telemetry.stage_changed(request, Stage.FINISHED, request.finished_at)
        self.telemetry.finished(request)
        if request.listener is not None:
            request.listener.on_finish(request)

    def take_in(self, now: float) -> None:
        """Queue what was handed in; between two steps only."""
        while self._inbox:
            request = self._inbox.popleft()
            self.counters.arrived += 1
            if request.finish_reason or request.id in self._requests:
                request.finish_reason, request.rejected_for = "rejected", request.rejected_for or OTHER
                self.counters.rejected += 1
                self._end(request, now)
                continue
            self._requests[request.id] = request
            self.scheduler.add(request, now)
            self.protection.queued(request)
            self.telemetry.stage_changed(request, Stage.QUEUE, now)
        while self._aborts:
            aborted = self._requests.pop(self._aborts.popleft(), None)
            if aborted is not None:
                self.scheduler.finish(aborted, "abort", now)
                self.counters.aborted += 1
                self._report(aborted)

    def _turn_away(self, request: Request, now: float) -> None:
        """Its deadline passed while it waited."""
        del self._requests[request.id]
        request.rejected_for = DEADLINE
        self.scheduler.finish(request, "rejected", now)
        self.counters.rejected += 1
        self._report(request)

    def _end(self, request: Request, now: float) -> None:
        request.finished_at = now
        request.enter(Stage.FINISHED, now)
        self._report(request)

    def crash(self) -> None:
        """The process ends: everything in flight is lost, and so is the step in progress."""
        now = self.clock.now()
        lost = [*self.scheduler.requests(), *self._inbox]
        self._inbox.clear()
        self._aborts.clear()
        self.open = None
        self.up = False
        for request in lost:
            request.finish_reason = request.finish_reason or "error"
            self._end(request, now)

    # -- what others read -------------------------------------------------------------------------------------------

    def request_rows(self, limit: int) -> list[Request]:
        """Requests in flight, at most `limit`: the queue's first 16, the largest holders, more of the queue."""
        queue = list(self.scheduler.waiting)
        head = queue[: min(HEAD_ROWS, limit)]
        holders = sorted(self.scheduler.running, key=lambda request: -len(request.blocks))[: limit - len(head)]
        return [*head, *holders, *queue[len(head) : limit - len(holders)]]

    def open_readings(self) -> dict[str, float]:
        """What a modelled device shows now: the open step's readings, or those of an idle device."""
        if self.open is not None and self.open.readings is not None:
            return self.open.readings
        readings: dict[str, float] = self.runner.idle_readings()
        return readings

    def skip_steps(self, steps: int) -> None:
        """Count steps that were computed at once (simulation/fused.py)."""
        self._steps += steps
        if self.runner.calls is not None:
            self.runner.calls.ran(steps)

    def record(self, plan: StepPlan, now: float) -> list[float]:
        """The record (STEP_FIELDS, then step_extras) of a step that begins now, as planned."""
        scheduler, pool, chunks = self.scheduler, self.pool, [chunk for _, chunk in plan.prefill]
        waiting, prefill_tokens, decode_tokens = len(scheduler.waiting), sum(chunks), len(plan.decode)
        draft_tokens = sum(map(len, plan.drafts.values())) if plan.drafts else 0
        record = [
            self._steps, now, 0.0, prefill_tokens, decode_tokens, max(chunks, default=0),
            len(scheduler.running), waiting, scheduler.waiting_fit() if waiting else 0,
            now - scheduler.waiting.head.stage_since if waiting else 0.0,
            scheduler.head_need_blocks() if waiting else 0,
            int(plan.stop_reason), pool.used_blocks, pool.total_blocks, pool.cached_blocks,
            scheduler.admission.reserved_blocks,
            pool.held_slots_tokens - scheduler.written_tokens - prefill_tokens - decode_tokens - draft_tokens,
            *self.counters.row(),
        ]  # fmt: skip
        record += [extra.read(scheduler) for extra in self._extra_fields]
        return record
