"""Arrivals of an engine that counts only endings: finished + rejected + running + waiting falls only by aborts.

A request whose client goes away leaves running or waiting and is counted nowhere. A fall of the sum that lasts for
`settle_s` is therefore booked as aborted; a shorter one is the page's own disorder (a stop string is seen by the front
end one step before the scheduler drops the request). The published count never falls within an epoch. Blind spot: an
abort and an arrival within `settle_s` cancel out.
"""

from __future__ import annotations

import math


class ArrivalBook:
    """Works out requests received since the engine's start, for one subject."""

    def __init__(self, settle_s: float = 2.0) -> None:
        self._settle_s = settle_s
        self._aborted = 0.0
        self._published = math.nan
        self._short_since = math.inf

    def update(self, accounted: float, at: float) -> float:
        """Requests received, given those accounted for at `at`; NaN while the sum is not known."""
        if math.isnan(accounted):
            return math.nan
        total = accounted + self._aborted
        if math.isnan(self._published) or total >= self._published:
            self._published = total
            self._short_since = math.inf
        elif self._short_since == math.inf:
            self._short_since = at
        elif at - self._short_since >= self._settle_s:
            self._aborted += self._published - total
            self._short_since = math.inf
        return self._published

    def restart(self) -> None:
        """A new epoch of the engine: count from its zero again."""
        self._aborted = 0.0
        self._published = math.nan
        self._short_since = math.inf
