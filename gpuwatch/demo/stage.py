"""What the screen is told of each judged second: levels, the state line, the open incidents, how fast time goes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ..model import Subject, Tick
from .panel import Moment
from .screen import Screen

if TYPE_CHECKING:
    from ..pipeline import Pipeline


class Stage:
    """Shows ticks on a screen and counts them. `virtual` says which clock they are of; `note` is shown with the pace."""

    def __init__(self, screen: Screen, virtual: bool) -> None:
        self.seconds = 0
        self.note = ""
        self._screen = screen
        self._virtual = virtual
        self._started_at = math.nan
        self._wall_start_s = time.monotonic()

    def show(self, tick: Tick, pipeline: Pipeline) -> None:
        """Show one second."""
        wall_s = time.monotonic()
        if not self.seconds:
            self._started_at = tick.now
        self.seconds += 1
        state = tick.states[0] if tick.states else None
        subject = state.subject if state else Subject()
        moment = Moment(
            tick.now,
            self._started_at,
            self._pace(tick.now, wall_s),
            state.line if state else "waiting for the engine's first word",
            pipeline.level(subject, "req_running"),
            pipeline.level(subject, "req_waiting"),
            pipeline.level(subject, "kv_usage_ratio"),
            tick.open,
        )
        self._screen.show(moment, wall_s)

    def say(self, text: str) -> None:
        """Tell what is being started, or waited for."""
        self._screen.say(text)

    def close(self) -> None:
        """Leave the screen."""
        self._screen.close()

    def _pace(self, now: float, wall_s: float) -> str:
        if not self._virtual:
            return f"real time{self.note}"
        took_s = wall_s - self._wall_start_s
        factor = f", {(now - self._started_at) / took_s:.0f} × real time" if took_s > 0.2 else ""
        return f"virtual time on a modelled device{factor}{self.note}"
