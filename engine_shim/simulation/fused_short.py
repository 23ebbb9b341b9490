"""Short stretches of pure decode steps while nobody waits: step by step, but without scheduler and requests.

What changes from step to step is a handful of sums, so a step costs a few operations, however many requests decode. Up
to some fifty steps this is cheaper than arrays (fused.py). The requests themselves are booked when the stretch is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.engine import Engine
from ..step import STEP_FIELDS, StepPlan

_STEP, _BEGUN, _ENDED, _DECODES, _RUNNING, _USED, _CACHED, _RESERVED, _UNUSED, _FINISHED, _GENERATED = (
    STEP_FIELDS.index(name)
    for name in (
        "step", "begun_at", "ended_at", "decode_tokens", "running", "kv_used_blocks", "kv_cached_blocks",
        "kv_reserved_blocks", "kv_slots_unused", "finished_total", "generated_tokens_total",
    )
)  # fmt: skip


@dataclass(slots=True)
class Steps:
    """Completed steps as the plain loop has them: a record and the device's work of each."""

    records: list[list[float]] = field(default_factory=list)
    works: list[tuple[float, ...]] = field(default_factory=list)


def short_stretch(
    engine: Engine, remaining: list[int], most: int, begins_before: float, ends_by: float
) -> tuple[Steps, list[float]]:
    """At most `most` steps from now on that begin and end in time, and the times between them.

    `remaining` has the tokens that each decoding request has left. It ends before a step that would have to preempt,
    and with a finish after which cached blocks would be forgotten: which of them would depend on who has gone by then.
    """
    scheduler, pool, decode_step = engine.scheduler, engine.pool, engine.runner.decode_step
    size, decoding, promised = pool.block_tokens, scheduler.decoding, engine.settings.reserve == "max_tokens"
    ends = sorted((left, index) for index, left in enumerate(remaining) if left <= most)
    phases = [0] * size  # how many requests fill a block in the step of that number, and every `size` steps after it
    for request in decoding:
        phases[-request.computed_tokens % size] += 1
    now = engine.clock.now()
    base = engine.record(StepPlan(decode=decoding), now)
    done, times, end = Steps(), [now], 0
    decodes, context_tokens = len(decoding), scheduler.context_tokens + len(decoding)
    free, cached, reserved = pool.free_blocks, pool.cached_blocks, scheduler.admission.reserved_blocks
    forgot = False  # whether cached blocks had to make room
    unwritten = base[_UNUSED] + decodes  # held slots that hold no token, before the step writes some
    finished, generated = engine.counters.finished, engine.counters.generated_tokens
    for number in range(most):
        grown = phases[number % size]
        forgets = grown > free - cached
        if grown > (free if promised else free - reserved) or (end and forgets) or now >= begins_before:
            break
        work, seconds = decode_step(decodes, context_tokens)
        begun, now = now, now + seconds
        if now > ends_by:
            break
        forgot = forgot or forgets
        free -= grown
        cached = min(cached, free)
        reserved -= grown if promised else 0
        unwritten += grown * size
        generated += decodes
        record = base.copy()
        record[_STEP], record[_BEGUN], record[_ENDED] = base[_STEP] + number + 1, begun, now
        record[_DECODES] = record[_RUNNING] = decodes
        record[_USED], record[_CACHED], record[_RESERVED] = pool.total_blocks - free, cached, reserved
        record[_UNUSED], record[_GENERATED] = unwritten - decodes, generated
        unwritten -= decodes
        context_tokens += decodes
        while end < len(ends) and ends[end][0] == number + 1:
            request = decoding[ends[end][1]]
            tokens = request.computed_tokens + number + 1
            held = -(-tokens // size)
            phases[-request.computed_tokens % size] -= 1
            decodes -= 1
            context_tokens -= tokens + 1
            free += held
            reserved -= max(0, request.reserved_blocks - held)
            unwritten += tokens - held * size
            end += 1
        record[_FINISHED] = finished + end
        done.records.append(record)
        done.works.append(work)
        times.append(now)
        if not decodes or (end and forgot):
            break
    return done, times
