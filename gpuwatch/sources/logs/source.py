"""An engine's log as a live source: follows a file or standard input and tells the numbers of new lines every second.

Lines count as of the moment that they are read: their own clocks may be hours off. What stood in the file before is
read once, for the facts of the start and for what the engine said last, dated by the file's own time. Silence is told by
the clock as silence.py says. `cut` counts what was left out, by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

from ...model import Batch, Subject
from .follow import FileLines, Lines, PipeLines
from .reader import LogReader

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LINES_A_LOOK = 20_000
NO_ITEMS = ("rotations", "truncations", "skipped_bytes")
"""Counts that are no lost items: nothing was lost, or it is counted as a skip."""


class LogSource:
    """Follows one engine's log. `path` is a file, or `-` for standard input. `alone`: no page tells of restarts."""

    role = "log"

    def __init__(self, path: str, subject: Subject, descriptor: int | None = None, alone: bool = True) -> None:
        self.name = f"log:{subject.engine}"
        self.subject = subject
        self.interval_s = LOOK_EVERY_S
        self._reader = LogReader(subject.engine, alone=alone)
        self._file = FileLines(Path(path)) if path != "-" else None
        self._lines: Lines = self._file if self._file is not None else PipeLines(descriptor)
        self._began = self._file is None
        self._told_cut = 0
        self._over: Counter[str] = Counter()

    @property
    def cut(self) -> Counter[str]:
        """What was left out, by name: long_lines, skips, skipped_bytes, lines, notices, ranks, impossible, unprefixed."""
        return self._lines.cut + self._reader.cut + self._over

    async def poll(self, now: float) -> Batch:
        """Read what is new. Raises OSError where the file cannot be read."""
        if not self._began:
            await asyncio.to_thread(self._begin, now)
        lines = await asyncio.to_thread(self._lines.look)
        self._over["lines"] += max(0, len(lines) - LINES_A_LOOK)
        for line in lines[-LINES_A_LOOK:]:
            self._reader.feed(line, now)
        self._reader.flush(now, ended=self._lines.ended)
        self._reader.advance(now)
        if self._lines.ended:
            self._reader.end()
        dropped = self._cut_since()
        return self._reader.take_told().batch(self.subject.engine, now, dropped)

    async def aclose(self) -> None:
        """Close the file."""
        self._lines.close()

    def _begin(self, now: float) -> None:
        """Take over what the log said before: facts, and the last numbers of each rank as old as they are."""
        assert self._file is not None
        lines, written_at = self._file.backlog()
        before = LogReader(self.subject.engine, lookback=True, start_at=written_at)
        for line in lines:
            before.feed(line)
            before.forget_rows()
        before.flush(ended=True)
        self._reader.take_over(before, min(written_at, now), now)
        self._began = True
        log.info("%s: following; %d lines were there", self.name, len(lines))

    def _cut_since(self) -> int:
        total = sum(count for name, count in self.cut.items() if name not in NO_ITEMS)
        fresh, self._told_cut = total - self._told_cut, total
        return max(0, fresh)
