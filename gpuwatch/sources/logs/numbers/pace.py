"""From stats lines to readings on the one-second grid, for one engine's rank.

A line's numbers stand until the next one as long as its engine's policy vouches for them (silence.py); after that they
are not known. Rates become counters: offline, where the next line is known, a rate is spread over the time that it was
measured over; live, over the time after it, so that a counter moves evenly and lags by one line.
"""

from __future__ import annotations

import math

from ..found import Stats
from .rhythm import Rhythm
from .rise import Rise
from .silence import POLICIES, Policy

LONGEST_HOLD_S = 7200.0
"""Offline, a silence is told for so long at most."""
_LATE_SECONDS = 60
"""Live, so many seconds are told at once at most, as after a pause of the machine."""
DILUTED = 0.25
"""After a standstill, the rate of the first line is at most so much of the rate before it."""
_SLOWEST_S = 60.0
"""Lines that come less often than this do not stand for longer."""


class Pace:
    """Readings of one rank. `take` a line, then ask for the `rows` up to a time; times must not run backwards."""

    def __init__(self, policy: str, lookback: bool) -> None:
        self.policy: Policy = POLICIES[policy]
        self._policy_name = policy
        self.gauges: dict[str, float] = {}
        self.line_at = math.nan
        self.diluted = 0
        self._lookback = lookback
        self._rises: dict[str, Rise] = {}
        self._rates: dict[str, float] = {}
        self._moved = False
        self._rhythm = Rhythm(self.policy.interval_s)
        self._second = -math.inf  # the last whole second that has been told

    def take(self, at: float, stats: Stats) -> list[tuple[float, dict[str, float]]]:
        """A line at `at`: the rows of the seconds before it that have not been told, and its own."""
        self.policy = POLICIES[stats.policy]
        gap = at - self.line_at
        is_line = bool(stats.rates) or "req_running" in stats.gauges or not self.policy.held
        early = None if self._lookback else self.rows(at)
        good = self._take_rates(at, stats)
        if stats.rates and not any(stats.rates.values()):
            self.gauges.update(stats.gauges)  # nothing moved since the line before: what stands now stood all the time
        rows = self.rows(at) if early is None else early
        if self._lookback and self._was_cut(gap, stats):
            rows = [row for row in rows if self._in_reach(row[0])]
        self.gauges.update(stats.gauges)
        for name in stats.unknown:
            self.gauges.pop(name, None)
        if not good:
            self.gauges = {name: value for name, value in self.gauges.items() if not name.endswith("_per_second")}
        for name, more in stats.counts.items():
            self._rise(name).add(more)
        for name, total in stats.totals.items():
            self._rise(name).set(total)
        if is_line:
            self._rates = {name: max(rate, 0.0) for name, rate in stats.rates.items()} or self._rates
            self._moved = any(rate > 0 for rate in stats.rates.values())
            if gap > 0:
                self._rhythm.learn(gap)
            self.line_at = at
        rows.append((at, self._row(at) | stats.momentary))
        self._second = max(self._second, math.floor(at))
        return rows

    def rows(self, until: float) -> list[tuple[float, dict[str, float]]]:
        """The whole seconds before `until` that have not been told, as far as the log vouches for them."""
        if math.isnan(self.line_at) or not self.policy.held:
            return []
        first = max(self._second, math.floor(self.line_at)) + 1
        last = math.ceil(until) - 1
        if self._lookback:
            last = min(last, math.floor(self.line_at + LONGEST_HOLD_S))
        else:
            first = max(first, last - _LATE_SECONDS)
        rows = []
        for second in range(int(first), int(last) + 1):
            if not self._vouches(second):
                break
            rows.append((float(second), self._row(second)))
        self._second = max(self._second, math.ceil(until) - 1)
        return rows

    def end(self) -> None:
        """The server stops or another begins: what was said last does not stand any more."""
        self.line_at = math.nan
        for rise in self._rises.values():
            rise.line_at = math.nan

    def resumed(self, line_at: float, now: float) -> Pace:
        """A live pace that goes on from `now` as if it had read the last line at `line_at`. Counters begin at zero."""
        pace = Pace(self._policy_name, lookback=False)
        pace.policy, pace.gauges, pace.line_at = self.policy, dict(self.gauges), line_at
        pace._moved, pace._rhythm, pace._second = self._moved, self._rhythm, math.ceil(now) - 1
        pace._rises = {name: rise.resumed() for name, rise in self._rises.items()}
        return pace

    def _vouches(self, t: float) -> bool:
        if self._in_reach(t):
            return True
        if self.policy.silence == "events":
            return True
        if self.policy.silence == "still":
            return not self._moved
        inside = self.gauges.get("req_running", 0.0) + self.gauges.get("req_waiting", 0.0)
        return self.policy.silence == "stuck" and inside > 0

    def _in_reach(self, t: float) -> bool:
        return t - self.line_at <= max(3.0, self.policy.reach * min(self._rhythm.usual_s, _SLOWEST_S))

    def _was_cut(self, gap: float, stats: Stats) -> bool:
        """Whether lines are missing before this one. A loop that stood still for `gap` would have diluted the rate that
        ends it to a small part of what it was; one that is as high as ever says that tokens came all the while."""
        if self.policy.silence != "stuck" or not gap > self.policy.reach * min(self._rhythm.usual_s, _SLOWEST_S):
            return False
        return any(rate > DILUTED * self._rates.get(name, 0.0) and rate > 0 for name, rate in stats.rates.items())

    def _row(self, t: float) -> dict[str, float]:
        row = dict(self.gauges)
        over = not self._in_reach(t) and self.policy.silence != "events"
        if over:  # nothing moves any more, at no rate
            row.update(dict.fromkeys((n for n in row if n.endswith("_per_second")), 0.0))
        row.update((name, rise.value(t)) for name, rise in self._rises.items() if self._is_told(rise, t))
        return row

    def _is_told(self, rise: Rise, t: float) -> bool:
        """Whether the log says where a counter is: not between the last moving line and what its silence means."""
        if t <= max(rise.until, self.line_at) or self.policy.silence == "events":
            return True
        return not self._moved if self.policy.silence == "still" else not self._in_reach(t)

    def _rise(self, name: str) -> Rise:
        return self._rises.setdefault(name, Rise(self.policy))

    def _take_rates(self, at: float, stats: Stats) -> bool:
        """False where the line's rates count over a pause."""
        good = True
        for name, rate in stats.rates.items():
            if not self._rise(name).take(at, rate, self._lookback):
                self.diluted += 1
                good = False
        return good
