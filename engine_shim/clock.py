"""Time as an argument: the real clock behind the server, a virtual one in `simulate`. Unix seconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is."""

    def now(self) -> float:
        """Unix seconds; never runs backwards within a process."""
        ...


class RealClock:
    """Unix time at start plus monotonic time since: a clock step of the machine does not reach the engine."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return self._offset + time.monotonic()


class VirtualClock:
    """A clock that stands until it is moved."""

    def __init__(self, start: float = 1_764_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Unix seconds of the simulated world."""
        return self._now

    def advance_to(self, t: float) -> None:
        """Move to `t`; ValueError if that lies in the past."""
        if t < self._now:
            raise ValueError(f"the clock cannot go back from {self._now} to {t}")
        self._now = t
