"""Reads the step ring: what the scheduler did, step by step, at no cost to the engine, and what it was doing at its end.

Each poll takes the steps and the requests that have ended since the last one, the step that runs, and the live request
table: whatever of these the engine writes. A file of another instance under the same name is a restart; what the old
instance wrote last is read first, from the file that is still open and from `.prev`. An engine that is gone or idle
writes nothing, and that is no error.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from ...model import Batch, Event, Frame, Info, LiveRequests, OpenStep, Spans, Subject
from ..facts import canonical_facts, number
from ..poll import Clock
from .finished_columns import finished_spans
from .ring_file import RingError, RingFile, Rows
from .step_columns import live_requests, open_step, step_frame

_TAIL_S = 60.0
_TABLE_EVERY_S = 1.0
_LIVE_S = 10.0


class StepsSource:
    """Follows one ring file. `subject` names the engine and rank that it belongs to; times are unix seconds.

    An `optional` ring may come later or never: as long as there has been no file, its absence is no error.
    """

    role = "steps"

    def __init__(
        self, path: str | Path, subject: Subject, clock: Clock, hertz: float = 5.0, optional: bool = False
    ) -> None:
        self.name = f"steps:{subject.engine}/{subject.rank}"
        self.subject = subject
        self.interval_s = 1 / hertz
        self._path = Path(path)
        self._optional = optional
        self._clock = clock
        self._ring: RingFile | None = None
        self._last: int | None = None  # slot; None before the first look at a file
        self._torn: int | None = None
        self._last_finished: int | None = None
        self._generation = -1
        self._table_at = -math.inf
        self._moved_at = -math.inf
        self._block_tokens = math.nan
        self._epoch = 0

    def is_live(self) -> bool:
        """True while the ring shows more than a page could: it moved within ten seconds, or a step runs."""
        return self._clock.now() - self._moved_at < _LIVE_S

    @property
    def pid(self) -> int:
        """The engine's process as the ring names it; 0 before a ring has been read."""
        return self._ring.pid if self._ring else 0

    async def poll(self, now: float) -> Batch:
        """Read what is new. RingError (a failed poll) where the file is missing or no ring."""
        frames: list[Frame] = []
        spans: list[Spans] = []
        events: list[Event] = []
        info: list[Info] = []
        dropped = 0
        if self._optional and self._ring is None and not self._path.exists():
            return Batch(self.name, self.role, self.subject, now)
        if self._replaced():
            fresh = RingFile(str(self._path))
            dropped += self._take_rest(frames, spans, now)
            if self._ring is not None and fresh.instance != self._ring.instance:
                dropped += self._take_between(frames, fresh.instance, now)
                self._epoch += 1
                events.append(
                    Event(self.subject, now, "restart", {"epoch": str(self._epoch + 1), "how": "new step ring"})
                )
            info.append(self._adopt(fresh, now))
        dropped += self._take(frames, now) + self._take_finished(spans, now)
        running, requests = self._in_flight(now)
        if frames or running:
            self._moved_at = now
        return Batch(
            self.name, self.role, self.subject, now,
            frames=tuple(frames), spans=tuple(spans), open_steps=running, requests=requests,
            events=tuple(events), info=tuple(info), dropped=dropped,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the file."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _replaced(self) -> bool:
        """True where the name has no file that is open here. A missing file replaces nothing that has been read."""
        if self._ring is None:
            return True
        try:
            status = os.stat(self._path)  # noqa: PTH116  (one system call, on the path that runs five times a second)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._ring.inode

    def _adopt(self, fresh: RingFile, now: float) -> Info:
        if self._ring is not None:
            self._ring.close()
        self._ring = fresh
        self._last, self._torn, self._generation, self._last_finished = None, None, -1, None
        labels = dict(fresh.info)
        labels["pid"] = fresh.pid
        facts, _ = canonical_facts(labels)
        self._block_tokens = number(facts.get("kv_block_tokens", ""))
        return Info(self.subject, now, facts)

    def _take(self, frames: list[Frame], now: float) -> int:
        """Append the steps that have completed; returns how many were lost to lapping or tearing."""
        if self._ring is None:
            return 0
        lost = 0
        while True:
            followed = self._last is not None
            steps = self._ring.completed(self._last or 0)
            lost += steps.lapped if followed else 0
            self._append(frames, steps, now, whole=followed)
            self._last = steps.last
            if steps.torn is None or steps.torn != self._torn:
                self._torn = steps.torn  # tried again at the next poll
                return lost
            lost += 1
            self._last, self._torn = steps.torn, None

    def _take_finished(self, spans: list[Spans], now: float) -> int:
        """Append the requests that have ended; returns how many were lost to lapping or tearing."""
        lost = 0
        while self._ring is not None:
            followed = self._last_finished is not None
            rows = self._ring.finished(self._last_finished or 0)
            if rows is None:
                break
            lost += rows.lapped if followed else 0
            since = -math.inf if followed else now - _TAIL_S
            found = finished_spans(self.subject, rows.columns, since)
            if found is not None:
                spans.append(found)
            self._last_finished = rows.last
            if rows.torn is None:
                break
            lost += 1  # its number is written after the row: a row that cannot be read now never will be
            self._last_finished = rows.torn
        return lost

    def _take_rest(self, frames: list[Frame], spans: list[Spans], now: float) -> int:
        """What the replaced instance wrote last: its file is still open."""
        try:
            return self._take(frames, now) + self._take_finished(spans, now)
        except RingError:
            return 1

    def _take_between(self, frames: list[Frame], newest: bytes, now: float) -> int:
        """An instance that came and went between two polls has left its steps in `.prev`."""
        try:
            between = RingFile(f"{self._path}.prev")
        except RingError:
            return 0
        try:
            if self._ring is not None and between.instance not in (self._ring.instance, newest):
                self._append(frames, between.completed(0), now, whole=False)
        except RingError:
            return 1
        finally:
            between.close()
        return 0

    def _append(self, frames: list[Frame], steps: Rows, now: float, *, whole: bool) -> None:
        """Add a frame; of a ring that is read for the first time, the last minute is enough."""
        columns = steps.columns
        if not whole:
            recent = columns["ended_at"] > now - _TAIL_S
            columns = {name: values[recent] for name, values in columns.items()}
        frame = step_frame(self.subject, columns, self._block_tokens)
        if frame is not None:
            frames.append(frame)

    def _in_flight(self, now: float) -> tuple[tuple[OpenStep, ...], tuple[LiveRequests, ...]]:
        """The step that runs, and the request table where it is new or a second has passed."""
        ring = self._ring
        if ring is None:
            return (), ()
        fields = ring.running()
        step = open_step(self.subject, now, fields) if fields else None
        steps = (step,) if step else ()
        if not ring.shows_requests:
            return steps, ()
        generation = ring.generation()
        if generation in (0, self._generation) and now - self._table_at < _TABLE_EVERY_S:
            return steps, ()
        table = ring.table()
        if table is None:
            return steps, ()
        self._generation, self._table_at = generation, now
        return steps, (live_requests(self.subject, now, *table),)
