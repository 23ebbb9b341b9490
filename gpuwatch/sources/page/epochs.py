"""Tells a restart of an engine from numbers that merely go down.

A later start stamp (`process_start_time_seconds`, `*_created`) is a restart. Without stamps, counters that fall at once
to less than half are. But one port may be answered by several processes in turn: their counters fall *and* rise again,
and their stamps alternate. Then nothing is a restart, and no counter can be trusted until it has been quiet for a
minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

Verdict = Literal["", "restart", "ambiguous", "unsure"]
"""`unsure`: counters fell on a page without the stamp that would decide; read one that has it."""

_QUIET_S = 60.0
_STAMP_SLACK_S = 1.0
_REMEMBERED = 16


class Epochs:
    """Follows one subject's counters and start stamps. Times are unix seconds; epochs count from 1."""

    def __init__(self) -> None:
        self.epoch = 1
        self.how = ""
        self._counters: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._fell_at = -math.inf
        self._ambiguous_until = -math.inf
        self._stamps: list[float] = []

    def ambiguous(self, at: float) -> bool:
        """True while several processes seem to answer in turn: counters mean nothing."""
        return at < self._ambiguous_until

    def update(self, counters: Mapping[str, float], stamp: float, at: float) -> Verdict:
        """Take one page's counters and newest start stamp (NaN: none). `how` says by what a restart was seen."""
        known = {name: value for name, value in counters.items() if not math.isnan(value)}
        by_stamp = self._by_stamp(stamp)
        if by_stamp == "restart":
            return self._restart(known, "start stamp")
        by_fall = self._by_fall(known, at)
        if by_fall == "restart" and self._stamps and math.isnan(stamp):
            return "unsure"
        if by_fall == "restart" and not self._stamps and not self.ambiguous(at):
            return self._restart(known, "counters fell")
        self._counters.update(known)
        if not by_stamp and not by_fall:
            return ""
        news = not self.ambiguous(at)
        self._ambiguous_until = at + _QUIET_S
        return "ambiguous" if news else ""

    def _restart(self, counters: dict[str, float], how: str) -> Verdict:
        self.how = how
        self.epoch += 1
        self._counters = counters
        return "restart"

    def _by_stamp(self, stamp: float) -> Verdict:
        if math.isnan(stamp):
            return ""
        known = self._stamps
        if not known:
            known.append(stamp)
            return ""
        if abs(stamp - known[-1]) <= _STAMP_SLACK_S:
            return ""
        later = stamp > max(known) + _STAMP_SLACK_S
        self._stamps = [*known[1 - _REMEMBERED :], stamp]
        return "restart" if later else "ambiguous"

    def _by_fall(self, counters: Mapping[str, float], at: float) -> Verdict:
        """`restart` for a joint fall to less than half; `ambiguous` for a smaller fall, and where they come back."""
        shared = [(self._counters[name], value) for name, value in counters.items() if name in self._counters]
        fallen = [(old, new) for old, new in shared if new < old]
        if fallen:
            together = all(new <= old / 2 for old, new in fallen) and not any(new > old for old, new in shared)
            if at - self._fell_at > _QUIET_S:
                self._before = dict(self._counters)
            self._fell_at = at
            return "restart" if together else "ambiguous"
        if self._before and at - self._fell_at <= _QUIET_S and self._jumped_back(counters):
            self._before = {}
            return "ambiguous"
        return ""

    def _jumped_back(self, counters: Mapping[str, float]) -> bool:
        """All that fell are, in one step, where they were before the fall: another process's answer."""
        fallen = [name for name, old in self._before.items() if self._counters.get(name, 0.0) < old]
        moved = [name for name in fallen if name in counters]
        return bool(moved) and all(
            counters[name] >= self._before[name] and self._counters.get(name, 0.0) <= self._before[name] / 2
            for name in moved
        )
