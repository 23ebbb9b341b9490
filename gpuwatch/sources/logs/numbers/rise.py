"""A counter made of rates: how it rises between the lines that state them.

Each line says a rate over the time since the line before. Looking back, the rate is spread over that time; live, when
that time is gone already, over the time after it. Lines of the same moment are one, with the mean of their rates.
"""

from __future__ import annotations

import math

from .rhythm import Rhythm
from .silence import Policy


class Rise:
    """`value` at a time, which must not run backwards by more than a line."""

    def __init__(self, policy: Policy, rhythm: Rhythm | None = None) -> None:
        self.line_at = math.nan
        self._policy = policy
        self._rhythm = rhythm or Rhythm(policy.interval_s)
        self._told = 0.0  # at `_since`
        self._due = 0.0  # evenly until `until`
        self._rest = 0.0  # of `_due`, from lines before
        self._since = self.until = -math.inf  # `until` (unix seconds): up to there the lines say how it rises
        self._lines = 0
        self._rate = 0.0
        self._span_s = 0.0
        self._high = 0.0

    def value(self, t: float) -> float:
        """The counter at `t` (unix seconds). What has been told once is not taken back."""
        self._high = max(self._high, self._at(t))
        return self._high

    def _at(self, t: float) -> float:
        if t >= self.until:
            return self._told + self._due
        if t <= self._since:
            return self._told
        return self._told + self._due * (t - self._since) / (self.until - self._since)

    def add(self, more: float) -> None:
        """An increase of this moment."""
        self._told += more

    def set(self, total: float) -> None:
        """The counter itself."""
        self._told = self._high = total
        self._due = 0.0

    def take(self, at: float, rate: float, lookback: bool) -> bool:
        """A line at `at` that says `rate` per second. False where it counts over a pause, and is no rate."""
        gap = at - self.line_at
        if gap == 0:
            self._lines += 1
            self._rate += (rate - self._rate) / self._lines
            self._due = self._rate * self._span_s + self._rest
            return True
        self.line_at = at
        usual = self._rhythm.usual_s
        paused = self._rhythm.is_pause(gap)
        if not math.isnan(gap):
            self._rhythm.learn(gap)
        if self._policy.dilutes and paused:
            self._settle(at)
            self._lines, self._rate, self._span_s = 0, 0.0, usual
            return False
        self._span_s = usual if math.isnan(gap) or paused else gap
        self._lines, self._rate = 1, rate
        self._settle(at)
        self._due = rate * self._span_s + self._rest
        self._since, self.until = (at - self._span_s, at) if lookback else (at, at + self._span_s)
        return True

    def resumed(self) -> Rise:
        """The same rhythm, from zero."""
        return Rise(self._policy, self._rhythm)

    def _settle(self, at: float) -> None:
        """What has been told by `at` is the base; the rest is still to be told."""
        now = self._at(at)
        self._rest = self._told + self._due - now
        self._told, self._due = now, self._rest
        self._since = self.until = at
