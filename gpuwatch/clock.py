"""What time it is: unix seconds at the start plus monotonic time since, so that a step of the machine's clock (NTP, an
operator, a resumed VM) never makes the agent's time run backwards.

When the machine's clock has been stepped, `reanchor` follows it and says so in an Event: data before and after it carry
times of different truth. A step forward is followed at once; after a step back the agent's time runs at half speed
until the machine's has caught up, for windows and rates cannot live with a second that comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .model import Event, Subject

STEP_S = 0.5
"""A smaller difference is slew and noise."""
CATCH_UP_RATE = 0.5


class WallClock:
    """The agent's clock. `unix` and `monotonic` are arguments so that a clock step can be produced."""

    def __init__(self, unix: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._unix = unix
        self._monotonic = monotonic
        self._anchor = unix() - monotonic()
        self._ahead_s = 0.0
        self._ahead_since = 0.0

    def now(self) -> float:
        """Unix seconds; strictly growing with monotonic time."""
        monotonic = self._monotonic()
        return self._anchor + monotonic + self._lead(monotonic)

    def reanchor(self, host: str) -> Event | None:
        """Follow the machine's clock where it has been stepped, and say by how much; None where it has not."""
        monotonic = self._monotonic()
        offset = self._unix() - monotonic
        step = offset - self._anchor
        if abs(step) < STEP_S:
            return None
        before = self._anchor + self._lead(monotonic)
        self._anchor = offset
        self._ahead_s, self._ahead_since = max(0.0, before - offset), monotonic
        return Event(Subject(host=host), self.now(), "clock", {"step_s": f"{step:.3f}"})

    def _lead(self, monotonic: float) -> float:
        """How far this clock is still ahead of the machine's, in seconds."""
        return max(0.0, self._ahead_s - CATCH_UP_RATE * (monotonic - self._ahead_since))
