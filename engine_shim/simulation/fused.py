"""Stretches of pure decode steps, computed at once: the same records as step by step, at a fraction of the time.

While nobody is admitted or preempted and no prefill is under way, every step adds one token to each running request.
Then all that a record holds is a known function of the step's place in the stretch: of what decodes when
(fused_course.py, fused_short.py) and of what the queue shows (fused_queue.py). Requests may finish in the midst of a
stretch, and new ones may join the queue behind a head that has to wait. A stretch ends before the step that would admit
or preempt somebody, and at the times that the caller sets. Equality with the plain loop holds to the last bit: both use
the same formulas in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from ..clock import VirtualClock
from ..engine.engine import Engine
from ..request import Request
from ..step import STEP_FIELDS, StepPlan
from .fused_course import Course, course_of
from .fused_queue import QueueColumns, can_admit, first_finish_admits
from .fused_short import Steps, short_stretch

MAX_STEPS = 256
WORTH_STEPS = 3  # a short stretch costs about as much as two plain steps and a little for each of its own
ARRAY_WORTH_STEPS = 8  # with arrays it costs as much as some eight plain ones, however long it is
SHORT_STEPS = 48  # up to here it is cheaper without arrays
_COLUMN = {name: index for index, name in enumerate(STEP_FIELDS)}
# The settings whose part in a stretch this module knows. Where another one is not at its default, a stretch ends with
# the first request that finishes or arrives.
_KNOWN = frozenset({
    "model", "max_num_seqs", "max_step_tokens", "chunked_prefill", "max_chunk_tokens", "block_tokens", "kv_pool_tokens",
    "kv_pool_ratio", "watermark_ratio", "admission", "reserve", "prefix_cache", "max_model_len", "max_waiting",
    "accept_oversized", "dtype", "kv_dtype", "tensor_parallel", "memory_ratio", "least_step_s",
})  # fmt: skip


@dataclass(slots=True)
class Stretch:
    """Completed steps: records [steps, fields], device work [steps, WORK_FIELDS]."""

    records: np.ndarray
    work: np.ndarray


class Incoming(Protocol):
    """The requests to come."""

    reacts: bool  # whether a request that finishes may bring another one sooner than `peek` says

    def peek(self) -> float:
        """Clock time of the next one."""
        ...

    def deliver(self) -> None:
        """Hand the engine what has arrived by the clock's now."""
        ...


class Fuser:
    """Computes stretches for an engine in virtual time, with the requests that come to it."""

    def __init__(self, engine: Engine, clock: VirtualClock, incoming: Incoming) -> None:
        self._engine = engine
        self._clock = clock
        self._incoming = incoming
        settings = engine.settings
        self._plain = all(f.name in _KNOWN or getattr(settings, f.name) == f.default for f in fields(settings))

    def stretch(self, ends_by: float) -> Stretch | Steps | None:
        """Run pure decode steps at once, as many as end by a clock time; None if that cannot be, or is not worth it."""
        engine, scheduler = self._engine, self._engine.scheduler
        if scheduler.prefilling or not scheduler.decoding or engine.has_mail() or not engine.pool.interchangeable:
            return None
        if scheduler.speculation.drafts or not scheduler.batching.fusable:
            return None
        queues_only = self._plain and bool(scheduler.waiting) and engine.settings.admission == "fifo"
        begins_before = min(
            np.inf if queues_only else self._incoming.peek(),
            scheduler.order.changes_at(),
            engine.protection.next_expiry(),
        )
        decodes, now = len(scheduler.decoding), self._clock.now()
        _, step_s = engine.runner.decode_step(decodes, scheduler.context_tokens + decodes)
        most = min((min(begins_before, ends_by) - now) / step_s, MAX_STEPS)
        short = not scheduler.waiting and most < SHORT_STEPS
        worth = WORTH_STEPS if short else ARRAY_WORTH_STEPS
        if most < worth or can_admit(engine):
            return None
        remaining, most = self._horizon(min(int(most) + 8, MAX_STEPS))
        if most < worth:
            return None
        if not short:
            return self._array_stretch(remaining, most, begins_before, ends_by)
        done, times = short_stretch(engine, remaining, most, begins_before, ends_by)
        if not done.records:
            return None
        self._run(times, None, None)
        return done

    def _horizon(self, most: int) -> tuple[list[int], int]:
        """The tokens that each decoding request has left, and after how many steps a stretch has to end for them."""
        decoding = self._engine.scheduler.decoding
        remaining = [request.stop_after - request.output_tokens for request in decoding]
        first = min(remaining)
        if not self._plain or self._incoming.reacts:
            return remaining, min(most, first)
        if first < ARRAY_WORTH_STEPS and first_finish_admits(self._engine, remaining.index(first)):
            return remaining, min(most, first)
        # A finish that leaves reusable blocks behind changes what others find cached: it ends the stretch.
        leaves = [left for left, r in zip(remaining, decoding, strict=True) if r.prefix_key or r.published_blocks]
        return remaining, min(most, max(remaining), *leaves)

    def _array_stretch(self, remaining: list[int], most: int, begins_before: float, ends_by: float) -> Stretch | None:
        engine = self._engine
        course = course_of(engine, remaining, most)
        blank = engine.pool.free_blocks - engine.pool.cached_blocks
        if course.finishes and len(course.taken) and course.taken[-1] > blank:
            # Cached blocks would be forgotten, and which of them depends on who has finished by then.
            course = course_of(engine, remaining, min(most, *remaining))
        if not len(course.decodes):
            return None
        work, seconds = engine.runner.decode_stretch(course.decodes, course.context_tokens)
        times = np.concatenate(((self._clock.now(),), seconds)).cumsum()
        steps = min(int(times[:-1].searchsorted(begins_before)), int(times[1:].searchsorted(ends_by, side="right")))
        queue = QueueColumns(engine, course, steps) if engine.scheduler.waiting else None
        if queue is not None:
            steps = queue.steps
        if not steps:
            return None
        records = _records(engine, times[: steps + 1], course)
        self._run(times[: steps + 1].tolist(), records, queue)
        return Stretch(records, work[:steps])

    def _run(self, times: list[float], records: np.ndarray | None, queue: QueueColumns | None) -> None:
        """Let the stretch happen: arrivals that queue, requests that finish, and the tokens of those that go on."""
        engine, clock, steps = self._engine, self._clock, len(times) - 1
        leaving = _leaving(engine, steps)
        if queue is not None and records is not None:
            queue.write(records, times, 0)
            while (at := self._incoming.peek()) <= times[-2]:  # later ones are taken in by the step after the stretch
                step = bisect_left(times, at)
                _leave(engine, clock, times, leaving, step)
                clock.advance_to(times[step])
                self._incoming.deliver()
                engine.take_in(times[step])
                queue.write(records, times, step)
        _leave(engine, clock, times, leaving, steps)
        clock.advance_to(times[steps])
        done = engine.scheduler.advance_decodes(engine.scheduler.decoding, steps, times[steps])
        engine.skip_steps(steps)
        engine.leave(done)


def _records(engine: Engine, times: np.ndarray, course: Course) -> np.ndarray:
    """The steps' records, as if nobody joined the queue."""
    pool, steps = engine.pool, len(times) - 1
    first = engine.record(StepPlan(decode=engine.scheduler.decoding), float(times[0]))
    records = np.empty((steps, len(first)))
    records[:] = first
    decodes, free = course.decodes[:steps], course.free[:steps]
    generated = decodes.cumsum()
    columns: dict[str, np.ndarray] = {
        "step": first[0] + np.arange(1, steps + 1),
        "begun_at": times[:-1],
        "ended_at": times[1:],
        "kv_used_blocks": pool.total_blocks - free,
        "kv_cached_blocks": np.minimum(pool.cached_blocks, free),
        "kv_reserved_blocks": course.reserved[:steps],
        "kv_slots_unused": first[_COLUMN["kv_slots_unused"]] + course.slots_tokens[:steps] - (generated - decodes[0]),
        "generated_tokens_total": engine.counters.generated_tokens + generated,
    }
    if course.finishes:
        columns |= {
            "decode_tokens": decodes,
            "running": decodes,
            "finished_total": engine.counters.finished + course.finished[:steps],
        }
    for name, values in columns.items():
        records[:, _COLUMN[name]] = values
    return records


def _leaving(engine: Engine, steps: int) -> list[tuple[int, list[Request]]]:
    """Who finishes with which of the steps before the last one, in reverse order."""
    groups: dict[int, list[Request]] = {}
    for request in engine.scheduler.decoding:
        left = request.stop_after - request.output_tokens
        if left < steps:
            groups.setdefault(left, []).append(request)
    return sorted(groups.items(), reverse=True)


def _leave(
    engine: Engine, clock: VirtualClock, times: list[float], leaving: list[tuple[int, list[Request]]], by: int
) -> None:
    """Book the requests that finish by the end of the step of that number, counted from 1."""
    while leaving and leaving[-1][0] <= by:
        steps, requests = leaving.pop()
        clock.advance_to(times[steps])
        engine.leave(engine.scheduler.advance_decodes(requests, steps, times[steps]))
