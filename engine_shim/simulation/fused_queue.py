"""What the waiting queue shows over a stretch of pure decode steps, and when its head would be let in.

In a stretch the queue only grows at its end. Its head waits as long as the pool or the number of running requests
refuses it; the step in which it would come in is not part of the stretch.
"""

from __future__ import annotations

import numpy as np

from ..engine.engine import Engine
from ..step import STEP_FIELDS, StopReason
from .fused_course import Course

_COLUMN = {name: index for index, name in enumerate(STEP_FIELDS)}


def can_admit(engine: Engine) -> bool:
    """Whether the next step would let somebody in, or nearly so."""
    scheduler = engine.scheduler
    if not scheduler.waiting:
        return False
    if len(scheduler.running) >= engine.settings.max_num_seqs:
        return bool(scheduler.displaceable())
    if engine.settings.admission == "bypass" and scheduler.waiting_fit():
        return True
    _, refusal = scheduler.next_admissible()
    return refusal is None or bool(scheduler.displaceable())


def first_finish_admits(engine: Engine, index: int) -> bool:
    """Whether the queue's head would come in if the decoding request at `index` left; an estimate."""
    scheduler = engine.scheduler
    if not scheduler.waiting:
        return False
    leaving = scheduler.decoding[index]
    room = scheduler.admission.available_blocks + len(leaving.blocks) - scheduler.admission.watermark_blocks(1)
    return engine.settings.admission == "bypass" or scheduler.head_need_blocks() <= room


class QueueColumns:
    """The queue's columns of the records. `steps` is the number of steps before the head would be admitted."""

    def __init__(self, engine: Engine, course: Course, steps: int) -> None:
        self._engine = engine
        admission = engine.scheduler.admission
        watermark_blocks = admission.watermark_blocks(1)
        free, available = course.free[:steps], course.available[:steps]
        self._room = available - watermark_blocks
        room = self._room
        if not engine.settings.chunked_prefill:  # there admission comes before growth
            grown = np.diff(course.taken[:steps], prepend=0)
            free = free + grown
            if engine.settings.reserve != "max_tokens":
                available = available + grown
                room = available - watermark_blocks
        need = engine.scheduler.head_need_blocks()
        full = course.decodes[:steps] >= engine.settings.max_num_seqs
        self._stop = np.full(steps, int(StopReason.WATERMARK))
        self._stop[need > available] = int(StopReason.RESERVATION)
        self._stop[need > free] = int(StopReason.NO_BLOCKS)
        self._stop[full] = int(StopReason.MAX_NUM_SEQS)
        comes_in = ~full & (need <= room)
        if engine.settings.admission == "bypass":
            comes_in |= ~full & (room >= engine.scheduler.waiting.window_needs[0])
        self.steps = int(comes_in.argmax()) if comes_in.any() else steps

    def write(self, records: np.ndarray, times: list[float], start: int) -> None:
        """Write the queue's columns from step `start` on, as the queue is now."""
        waiting, counters, steps = self._engine.scheduler.waiting, self._engine.counters, len(records)
        needs = np.array(waiting.window_needs)
        if start == 0:
            records[:, _COLUMN["stop_reason"]] = self._stop[:steps]
            records[:, _COLUMN["head_wait_seconds"]] = np.array(times[:-1]) - waiting.head.stage_since
        else:
            records[start:, _COLUMN["waiting"]] = len(waiting)
            records[start:, _COLUMN["arrived_total"]] = counters.arrived
            records[start:, _COLUMN["rejected_total"]] = counters.rejected
        records[start:, _COLUMN["waiting_fit"]] = needs.searchsorted(self._room[start:steps], side="right")
