"""Puts the lines of one log on one axis of unix seconds that never runs backwards.

The first clock that is seen is the axis; another clock that turns up later is laid beside it. A date without a year gets
the year that is nearest to what is known. A jump back of more than a minute is a second run in the same file: it is put
behind the first. Lines without a time take the one before; a log without any times is laid out line by line.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime

from .stamps import FIRST_YEAR, Clock, Stamp, in_year

BACK_S = 60.0
"""Writers that share a file may be this much out of order."""
FORWARD_S = 400 * 86400.0
"""A time further ahead than this is garbage."""
LATEST_S = 32_503_680_000.0
"""The year 3000: nothing that comes later is a time."""
SAME_S = 5.0
MOST_CLOCKS = 64


class Timeline:
    """`now` is the time of the newest line, NaN before the first. `counts`: late, garbage, second_run, no_time.

    `first_at`: the first time that the log says; where it says none, where its first line was put.
    """

    def __init__(self, start_at: float | None = None) -> None:
        self.now = self.first_at = math.nan
        self.timed = False
        self.yearless = False
        self.counts: Counter[str] = Counter()
        self._start_at = start_at
        self._offsets: dict[Clock, float] = {}
        self._year = 0

    def place(self, stamp: Stamp) -> float:
        """The time of a line with a stamp."""
        raw = self._unix(stamp)
        if not 0 <= raw <= LATEST_S:
            self.counts["garbage"] += 1
            return self.carry_on()
        if stamp.clock not in self._offsets:
            if self._only_guessed(stamp):
                self.now = math.nan
            if len(self._offsets) >= MOST_CLOCKS:
                self.counts["garbage"] += 1
                return self.carry_on()
            self._offsets[stamp.clock] = self._offset(stamp, raw)
            if not self.timed:
                self.first_at = raw + self._offsets[stamp.clock]
            self.timed = True
        at = raw + self._offsets[stamp.clock]
        if math.isnan(self.now):
            self.now = at
        elif at > self.now + FORWARD_S or at < 0:
            self.counts["garbage"] += 1
        elif at < self.now - BACK_S:
            self.counts["second_run"] += 1
            self._offsets[stamp.clock] += self.now + 1.0 - at
            self.now += 1.0
        elif at < self.now:
            self.counts["late"] += 1
        else:
            self.now = at
        return self.now

    def carry_on(self, took_s: float = 0.0, counts: bool = False) -> float:
        """The time of a line without a stamp. Where no line has one, lines that count are `took_s` apart, or a second."""
        if math.isnan(self.now):
            self.now = self.first_at = self._start_at if self._start_at is not None else 0.0
        elif counts and not self.timed:
            self.now += min(took_s, 3600.0) or 1.0
            self.counts["no_time"] += 1
        return self.now

    def _only_guessed(self, stamp: Stamp) -> bool:
        """A date against a beginning that the file's date suggested, before anything was placed by it: the date is right."""
        return not self.timed and not self.counts["no_time"] and not stamp.clock.startswith("boot")

    def _offset(self, stamp: Stamp, raw: float) -> float:
        """A clock is laid beside what is known; alone, it is the axis, and an uptime begins where the log does."""
        if not math.isnan(self.now):
            return 0.0 if abs(self.now - raw) < SAME_S else self.now - raw
        if stamp.clock.startswith("boot") and self._start_at is not None:
            return self._start_at - raw
        return 0.0

    def _unix(self, stamp: Stamp) -> float:
        if not stamp.yearless:
            return stamp.unix_s
        if not self._year:
            hint = self.now if not math.isnan(self.now) else self._start_at
            self.yearless = hint is None
            self._year = 2000 if hint is None else _nearest_year(stamp, hint)
        at = in_year(stamp, self._year)
        known = self.now - self._offsets.get(stamp.clock, 0.0)
        if known - at > 300 * 86400:  # December, then January
            self._year += 1
            at = in_year(stamp, self._year)
        return at


def _nearest_year(stamp: Stamp, hint: float) -> int:
    year = datetime.fromtimestamp(min(max(0.0, hint), LATEST_S), UTC).year
    years = [max(FIRST_YEAR, y) for y in (year - 1, year, year + 1)]
    return min(years, key=lambda y: abs(in_year(stamp, y) - hint))
