"""A whole log, offline: what it says, second by second, in the order of time.

Times are those of the log (timeline.py), not of the reading. The newest seconds are kept where a log is longer than the
bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from ...model import Batch
from .reader import LogReader
from .told import Told

MOST_SECONDS = 200_000


class LogRead(msgspec.Struct):
    """What a log brought. `calls`: (unix second by which it is known, batches), in order.

    `engine_kind`: what printed it (vllm, sglang, tgi, trtllm, llamacpp, lmdeploy, dcgm, kernel; empty: nothing was
    recognised). `timed`: the log has times; without, seconds are line numbers. `first_at`, `last_at`: of any line, NaN
    for an empty log. `torn`: lines put together again. `diluted`: rates dropped because they counted over a pause.
    `dropped`: what was cut, by name. `notes`: what qualifies the reading, for people.
    """

    calls: list[tuple[float, tuple[Batch, ...]]] = []
    engine_kind: str = ""
    lines: int = 0
    read: int = 0
    torn: int = 0
    diluted: int = 0
    timed: bool = False
    first_at: float = math.nan
    last_at: float = math.nan
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    notes: list[str] = []

    @property
    def unread(self) -> int:
        """Lines that said nothing that is understood."""
        return self.lines - self.read


class _Seconds:
    """What was told, by the second by which it is known; the newest are kept."""

    def __init__(self) -> None:
        self.by_second: dict[int, Told] = {}
        self.cut = 0
        self.cut_notices = 0

    def add(self, told: Told) -> None:
        for rank, rows in told.rows.items():
            for at, row in rows:
                self._at(math.ceil(at)).add_rows(rank, [(at, row)])
        for key, times in told.notices.items():
            self.cut_notices += not self._at(key.second).add_notice(key, times)
        for histogram in told.histograms:
            self._at(math.ceil(histogram.at)).add_histogram(histogram)
        if told.facts:
            self._at(math.ceil(told.facts_at)).add_facts(told.facts_at, told.facts)

    def _at(self, second: int) -> Told:
        found = self.by_second.get(second)
        if found is None:
            if len(self.by_second) >= 2 * MOST_SECONDS:
                self._forget()
            found = self.by_second[second] = Told()
        return found

    def _forget(self) -> None:
        for second in sorted(self.by_second)[:-MOST_SECONDS]:
            del self.by_second[second]
            self.cut += 1

    def calls(self, engine: str) -> list[tuple[float, tuple[Batch, ...]]]:
        seconds = sorted(self.by_second)
        self.cut += max(0, len(seconds) - MOST_SECONDS)
        return [(float(s), (self.by_second[s].batch(engine, float(s)),)) for s in seconds[-MOST_SECONDS:]]


def read_log(lines: Iterable[bytes], engine: str, start_at: float | None = None) -> LogRead:
    """Read a log. Lines that begin with `# ` are remarks and skipped.

    `start_at` (unix seconds): about when the log begins, as from the file's date; it chooses the year where dates have
    none, and is where a log without times begins. Never raises for what lines hold.
    """
    reader = LogReader(engine, lookback=True, start_at=start_at)
    seconds = _Seconds()
    for raw in lines:
        if raw[:1] == b"#" and not raw[1:2].strip():
            continue
        reader.feed(raw)
        if not reader.told.is_empty:
            seconds.add(reader.take_told())
    reader.flush(ended=True)
    last_at = reader.timeline.now
    if not math.isnan(last_at):
        reader.advance(math.floor(last_at) + 1)
    seconds.add(reader.take_told())
    found = LogRead(
        seconds.calls(engine), _kind(reader), reader.lines, reader.read, reader.torn, reader.diluted,
        reader.timeline.timed, reader.timeline.first_at, last_at, +reader.cut,
    )  # fmt: skip
    found.dropped += Counter({"seconds": seconds.cut, "notices": seconds.cut_notices})
    found.notes = _notes(reader, found)
    return found


def _kind(reader: LogReader) -> str:
    return reader.printed_by.most_common(1)[0][0] if reader.printed_by else ""


def _notes(reader: LogReader, found: LogRead) -> list[str]:
    """What a person should know about the reading. Never text of the log."""
    notes = []
    clock = reader.timeline
    if found.read and not clock.timed:
        notes.append("the log has no times: its lines are laid out in order, and durations are not known")
    if clock.yearless:
        notes.append("the log's dates have no year: they are read as the year 2000, in UTC")
    if clock.counts["second_run"]:
        notes.append(f"time runs back {clock.counts['second_run']} times: read as later runs in the same log")
    if found.torn:
        notes.append(f"{found.torn} wrapped lines were put together again")
    if found.diluted:
        notes.append(f"{found.diluted} rates counted over a pause and were not used")
    if found.lines and not found.read:
        notes.append("nothing of it is a line of an engine that is known")
    notes += [f"{count} {what.replace('_', ' ')} cut" for what, count in found.dropped.items() if count]
    return notes
