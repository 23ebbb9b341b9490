"""From stats lines to readings on the one-second grid, for one engine's rank.

A line's numbers stand until the next one as long as its engine's policy vouches for them (silence.py); after that they
are not known. Rates become counters: offline, where the next line is known, a rate is spread over the time that it was
measured over; live, over the time after it, so that a counter moves evenly and lags by one line.
"""

from __future__ import annotations

import math

from .found import Stats
from .silence import POLICIES, Policy

LONGEST_HOLD_S = 7200.0
"""A silence is told for so long at most: whoever wants more has an hours-old log."""
_SLOWEST_S = 60.0


class _Rise:
    """A counter's way: `told` so far, and `due` more, evenly until `until`."""

    def __init__(self) -> None:
        self.told = 0.0
        self.due = 0.0
        self.since = self.until = -math.inf
        self.line_at = math.nan
        self.gap_s = math.nan

    def at(self, t: float) -> float:
        if t >= self.until:
            return self.told + self.due
        if t <= self.since:
            return self.told
        return self.told + self.due * (t - self.since) / (self.until - self.since)

    def settle(self, t: float) -> float:
        """What has been told by `t` becomes the base; returns what is still due."""
        now = self.at(t)
        rest = self.told + self.due - now
        self.told, self.due = now, 0.0
        self.since = self.until = t
        return rest


class Pace:
    """Readings of one rank. `take` a line, then ask for the `rows` up to a time; times must not run backwards."""

    def __init__(self, policy: str, lookback: bool) -> None:
        self.policy: Policy = POLICIES[policy]
        self.gauges: dict[str, float] = {}
        self.line_at = math.nan
        self.diluted = 0
        self._lookback = lookback
        self._rises: dict[str, _Rise] = {}
        self._moved = False
        self._gap_s = math.nan
        self._second = -math.inf  # the last whole second that has been told

    def take(self, at: float, stats: Stats) -> list[tuple[float, dict[str, float]]]:
        """A line at `at`: the rows of the seconds before it that have not been told, and its own."""
        self.policy = POLICIES[stats.policy]
        gap = at - self.line_at
        is_line = bool(stats.rates) or "req_running" in stats.gauges or not self.policy.held
        rates = self._undiluted(at, stats)
        if self._lookback:
            self._spread_back(at, rates)
        rows = self.rows(at)
        self.gauges.update({n: v for n, v in stats.gauges.items() if not (n.endswith("_per_second") and not rates)})
        if not self._lookback:
            self._spread_ahead(at, rates)
        for name, more in stats.counts.items():
            self._rise(name).told += more
        for name, total in stats.totals.items():
            self._rise(name).told = total
        if is_line:
            self._moved = any(rate > 0 for rate in stats.rates.values())
            if 0 < gap < 4 * self.usual_gap_s + 1:
                self._gap_s = self.usual_gap_s + 0.3 * (min(gap, _SLOWEST_S) - self.usual_gap_s)
            self.line_at = at
        rows.append((at, self._row(at) | stats.momentary))
        self._second = max(self._second, math.floor(at))
        return rows

    def rows(self, until: float) -> list[tuple[float, dict[str, float]]]:
        """The whole seconds before `until` that have not been told, as far as the log vouches for them."""
        if math.isnan(self.line_at) or not self.policy.held:
            return []
        first = max(self._second, math.floor(self.line_at)) + 1
        last = min(math.ceil(until) - 1, math.floor(self.line_at + LONGEST_HOLD_S))
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

    @property
    def usual_gap_s(self) -> float:
        """Usual time between two lines."""
        return self.policy.interval_s if math.isnan(self._gap_s) else self._gap_s

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
        return t - self.line_at <= max(3.0, self.policy.reach * self.usual_gap_s)

    def _row(self, t: float) -> dict[str, float]:
        row = dict(self.gauges)
        if (
            not self._in_reach(t) and self.policy.silence != "events"
        ):  # nothing moves any more: the rate of the last line is over
            row.update(dict.fromkeys((n for n in row if n.endswith("_per_second")), 0.0))
        row.update((name, rise.at(t)) for name, rise in self._rises.items())
        return row

    def _rise(self, name: str) -> _Rise:
        return self._rises.setdefault(name, _Rise())

    def _undiluted(self, at: float, stats: Stats) -> dict[str, float]:
        """The rates that are rates: not those that count over a pause in which nothing was printed."""
        if not self.policy.dilutes:
            return stats.rates
        kept = {}
        for name, rate in stats.rates.items():
            rise = self._rise(name)
            gap = at - rise.line_at
            usual = self.policy.interval_s if math.isnan(rise.gap_s) else rise.gap_s
            first, rise.line_at = math.isnan(gap), at
            if not first and gap > max(4 * usual, usual + 4):
                self.diluted += 1
                rise.settle(at)
                continue
            if not first and gap > 0:
                rise.gap_s = usual + 0.3 * (gap - usual)
            kept[name] = rate
        return kept

    def _span_s(self, at: float) -> float:
        """The time that a line's rates were measured over: since the line before, unless that was a pause."""
        gap = at - self.line_at
        usual = self.usual_gap_s
        return gap if 0 < gap <= 1.6 * usual + 1 else usual

    def _spread_back(self, at: float, rates: dict[str, float]) -> None:
        first = math.isnan(self.line_at)
        span = self._span_s(at)
        for name, rate in rates.items():
            rise = self._rise(name)
            rise.settle(at)
            rise.since, rise.until = at - span, at
            if first:
                rise.told += rate * span
            else:
                rise.due = rate * span

    def _spread_ahead(self, at: float, rates: dict[str, float]) -> None:
        span = self._span_s(at)
        for name, rate in rates.items():
            rise = self._rise(name)
            rest = rise.settle(at)
            rise.due = rate * span + rest
            rise.since, rise.until = at, at + self.usual_gap_s
