"""What running requests do over a stretch of pure decode steps: who decodes when, and what that takes from the pool.

Arrays have one entry for each step, of what holds in that step after its blocks were given out. A request that has k
tokens left decodes in the first k steps; with the end of the last of them its blocks are free again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.engine import Engine

_COUNT = np.arange(1024)


@dataclass(slots=True)
class Course:
    """Blocks are counted in blocks, from the pool's state at the start; `taken` and `finished` from zero."""

    decodes: np.ndarray  # requests that decode
    context_tokens: np.ndarray  # KV tokens that they read
    taken: np.ndarray  # blocks taken so far, this step's included
    free: np.ndarray
    reserved: np.ndarray
    slots_tokens: np.ndarray  # held slots less what was written in them, against the start; for those that go on
    finished: np.ndarray  # requests that have finished by the end of the step
    finishes: bool  # whether anybody does

    @property
    def available(self) -> np.ndarray:
        """Free and not promised to anybody."""
        available: np.ndarray = self.free - self.reserved
        return available


def course_of(engine: Engine, remaining: list[int], steps: int) -> Course:
    """The course over at most `steps` steps of requests that have `remaining` tokens left each.

    It is cut before a step that would have to preempt, or that would forget cached blocks that the queue's head finds.
    """
    scheduler, pool, admission = engine.scheduler, engine.pool, engine.scheduler.admission
    size, count, decoding = pool.block_tokens, _COUNT[:steps], scheduler.decoding
    computed = [request.computed_tokens for request in decoding]
    decodes = np.full(steps, len(decoding))
    context_tokens = scheduler.context_tokens + len(decoding) * (count + 1)
    # A block is full whenever its phase comes round.
    grown = np.bincount([-tokens % size for tokens in computed], minlength=size)[count % size]
    freed = np.zeros(
        (4, steps), dtype=np.int64
    )  # blocks, promises, tokens written, and requests, of those that finished
    for index, left in enumerate(remaining):
        if left > steps:
            continue
        freed[3, left - 1 :] += 1
        if left == steps:
            continue
        start, request = computed[index], decoding[index]
        decodes[left:] -= 1
        context_tokens[left:] -= start + 1 + count[left:]
        grown[left + -(start + left) % size :: size] -= 1
        held = -(-(start + left) // size)
        freed[0, left:] += held
        freed[1, left:] += max(0, request.reserved_blocks - held)
        freed[2, left:] += start + left
    taken, finished = grown.cumsum(), freed[3]
    free = pool.free_blocks - taken + freed[0]
    reserved = admission.reserved_blocks - freed[1]
    if engine.settings.reserve == "max_tokens":  # then growth comes out of what was reserved at admission
        reserved -= taken
    room = free - reserved if engine.settings.reserve != "max_tokens" else free
    if scheduler.waiting and admission.hits(scheduler.waiting.head):
        room = np.minimum(room, free - pool.cached_blocks)
    lacking = (room < 0).argmax() if room.min() < 0 else steps
    slots_tokens = (taken - freed[0]) * size + freed[2]
    whole = Course(decodes, context_tokens, taken, free, reserved, slots_tokens, finished, bool(finished[-1]))
    return whole if lacking == steps else _cut(whole, int(lacking))


def _cut(course: Course, steps: int) -> Course:
    arrays = (course.decodes, course.context_tokens, course.taken, course.free, course.reserved, course.slots_tokens)
    finished = course.finished[:steps]
    return Course(*(array[:steps] for array in arrays), finished, bool(steps and finished[-1]))
