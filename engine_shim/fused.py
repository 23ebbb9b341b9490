"""Stretches of pure decode steps, computed at once: the same records as step by step, some twenty times faster.

While no request arrives, finishes, is admitted or preempted, and no prefill is under way, every step adds one token to
each running request. Then all that a record holds is a known function of the step's place in the stretch. A stretch
ends with the step in which the first request finishes, before the step that would have to preempt, and at the times
that the caller sets. Equality with the plain loop holds to the last bit: both use the same formulas in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .clock import VirtualClock
from .engine import Engine
from .step import STEP_FIELDS, StepPlan, StopReason

MAX_STEPS = 256
WORTH_STEPS = 5  # a stretch costs about as much as four plain steps
_COLUMN = {name: index for index, name in enumerate(STEP_FIELDS)}


@dataclass(slots=True)
class Stretch:
    """Completed steps: records [steps, STEP_FIELDS], device work [steps, WORK_FIELDS]."""

    records: np.ndarray
    work: np.ndarray


@dataclass(slots=True)
class _Blocks:
    """The pool in each step of a stretch, after that step's growth; `taken` counts from the stretch's start."""

    taken: np.ndarray
    free: np.ndarray
    reserved: np.ndarray

    @property
    def available(self) -> np.ndarray:
        available: np.ndarray = self.free - self.reserved
        return available


def decode_stretch(engine: Engine, clock: VirtualClock, begins_before: float, ends_by: float) -> Stretch | None:
    """Run as many pure decode steps as begin before one clock time and end by the other; None if that is not worth it."""
    scheduler = engine.scheduler
    if scheduler.prefilling or not scheduler.decoding or engine.has_mail() or not engine.pool.interchangeable:
        return None
    if not scheduler.batching.fusable or _can_admit(engine):
        return None
    begins_before = min(begins_before, scheduler.order.changes_at())
    steps = min(MAX_STEPS, min([r.stop_after - r.output_tokens for r in scheduler.decoding]))
    decodes = len(scheduler.decoding)
    step_s = engine.runner.decode_seconds(decodes, scheduler.context_tokens + decodes)
    if min(steps, (min(begins_before, ends_by) - clock.now()) / step_s) < WORTH_STEPS:
        return None
    blocks, steps = _blocks(engine, steps)
    context_tokens = scheduler.context_tokens + decodes * np.arange(1, steps + 1)
    work, seconds = engine.runner.decode_stretch(decodes, context_tokens)
    times = np.empty(steps + 1)
    times[0] = clock.now()
    times[1:] = seconds
    np.add.accumulate(times, out=times)
    steps = min(steps, int(times[:-1].searchsorted(begins_before)), int(times[1:].searchsorted(ends_by, side="right")))
    if not steps:
        return None
    blocks = _Blocks(blocks.taken[:steps], blocks.free[:steps], blocks.reserved[:steps])
    records = _records(engine, times[: steps + 1], blocks)
    now = float(times[steps])
    clock.advance_to(now)
    _advance(engine, steps, now)
    records[-1, _COLUMN["finished_total"]] = engine.counters.finished
    return Stretch(records, work[:steps])


def _can_admit(engine: Engine) -> bool:
    scheduler = engine.scheduler
    if not scheduler.waiting:
        return False
    if len(scheduler.running) >= engine.settings.max_num_seqs:
        return bool(scheduler.displaceable())
    if engine.settings.admission == "bypass" and scheduler.waiting_fit():
        return True  # or nearly so
    _, refusal = scheduler.next_admissible()
    return refusal is None or bool(scheduler.displaceable())


def _blocks(engine: Engine, steps: int) -> tuple[_Blocks, int]:
    """The pool over at most `steps` steps, cut before one that would preempt or change what the head finds cached."""
    scheduler, pool, admission = engine.scheduler, engine.pool, engine.scheduler.admission
    size = pool.block_tokens
    computed = np.array([r.computed_tokens for r in scheduler.decoding])
    per_phase = np.bincount(-computed % size, minlength=size)  # a block is full whenever its phase comes round
    taken = np.resize(per_phase, steps).cumsum()
    promised = engine.settings.reserve == "max_tokens"  # then growth comes out of what was reserved at admission
    room = scheduler.growth_blocks
    if scheduler.waiting and admission.hits(scheduler.waiting.head):
        room = min(room, pool.free_blocks - pool.cached_blocks)
    steps = int(taken.searchsorted(room, side="right"))
    taken = taken[:steps]
    reserved = admission.reserved_blocks - taken if promised else np.full(steps, admission.reserved_blocks)
    return _Blocks(taken, pool.free_blocks - taken, reserved), steps


def _records(engine: Engine, times: np.ndarray, blocks: _Blocks) -> np.ndarray:
    scheduler, pool, steps, decodes = engine.scheduler, engine.pool, len(times) - 1, len(engine.scheduler.decoding)
    first = engine.record(StepPlan(decode=scheduler.decoding), float(times[0]))
    records = np.empty((steps, len(first)))
    records[:] = first
    count = np.arange(1, steps + 1)
    columns: dict[str, np.ndarray] = {
        "step": first[0] + count,
        "begun_at": times[:-1],
        "ended_at": times[1:],
        "kv_used_blocks": pool.total_blocks - blocks.free,
        "kv_cached_blocks": np.minimum(pool.cached_blocks, blocks.free),
        "kv_reserved_blocks": blocks.reserved,
        "kv_slots_unused": first[_COLUMN["kv_slots_unused"]] + blocks.taken * pool.block_tokens - decodes * (count - 1),
        "generated_tokens_total": engine.counters.generated_tokens + decodes * count,
    }
    if scheduler.waiting:
        columns |= _queue_columns(engine, times[:-1], blocks, first[_COLUMN["head_need_blocks"]])
    for name, values in columns.items():
        records[:, _COLUMN[name]] = values
    return records


def _queue_columns(
    engine: Engine, begun: np.ndarray, blocks: _Blocks, head_need_blocks: float
) -> dict[str, np.ndarray]:
    scheduler = engine.scheduler
    running = len(scheduler.running)
    watermark_blocks = scheduler.admission.watermark_blocks(running)
    needs = np.array(scheduler.waiting.window_needs)
    if running >= engine.settings.max_num_seqs:
        stop = np.full(len(begun), int(StopReason.MAX_NUM_SEQS))
    else:
        free, available = blocks.free, blocks.available
        if not engine.settings.chunked_prefill:  # there admission comes before growth
            free, available = (
                _before(free, engine.pool.free_blocks),
                _before(available, scheduler.admission.available_blocks),
            )
        stop = np.full(len(begun), int(StopReason.WATERMARK))
        stop[head_need_blocks > available] = int(StopReason.RESERVATION)
        stop[head_need_blocks > free] = int(StopReason.NO_BLOCKS)
    return {
        "waiting_fit": needs.searchsorted(blocks.available - watermark_blocks, side="right"),
        "head_wait_seconds": begun - scheduler.waiting.head.stage_since,
        "stop_reason": stop,
    }


def _before(values: np.ndarray, first: int) -> np.ndarray:
    shifted = np.empty_like(values)
    shifted[0] = first
    shifted[1:] = values[:-1]
    return shifted


def _advance(engine: Engine, steps: int, now: float) -> None:
    """Book the stretch: tokens, blocks, and the requests that finish with its last step."""
    scheduler = engine.scheduler
    done = scheduler.advance_decodes(steps, now)
    engine.skip_steps(steps)
    engine.leave(done)
