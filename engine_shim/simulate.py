"""Virtual time: plays arrivals and faults against an engine with a modelled device, as fast as the CPU allows.

`play` moves the engine's VirtualClock from one event to the next (step end, arrival, poll, fault). Nothing here draws a
metric: what the observer sees is what the scheduler did. All times are clock seconds (unix seconds of the simulated
world), and a request's `arrived_at` is one of them. Requests are taken in between steps, as in a real engine, so that
one that arrives in the middle of a step is seen at that step's end.

Telemetry.step_begun and step_ended are not called here: completed steps come in blocks through Observer.steps.
Telemetry.stage_changed and finished are called as always, on `engine.telemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .request import Request

if TYPE_CHECKING:
    from .engine import Engine
    from .faults import Fault


class Observer(Protocol):
    """Who writes down what the simulated engine shows. Called in the order of virtual time."""

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """Steps completed since the last call, oldest first: at each poll, and at the end.

        `columns` has the fields of step.STEP_FIELDS, `readings` one device reading per step, averaged over that step
        (runners.model.READINGS: gr_engine_active_ratio, sm_active_ratio, sm_occupancy_ratio, tensor_active_ratio,
        dram_active_ratio, dram_bytes [in the step], power_watts, sm_clock_hertz). All arrays have the same length.
        In gaps between steps the device idles: engine.runner.idle_readings().
        """
        ...

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """A poll boundary. Every step that ended up to `now` has been given to `steps`.

        `open_record` (STEP_FIELDS, ended_at = 0) is the step in progress, and `engine.open_readings()` is what the device
        shows meanwhile. While the engine is down `engine.up` is False and open_record None.
        """
        ...

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """Something happened to the engine: `down` (detail: cause `restart` or `crash`) or `up` (detail: epoch)."""
        ...


class Arrivals(Protocol):
    """A source of requests that may learn from what has finished (closed loops). A plain iterator will do otherwise."""

    def peek(self) -> float:
        """Clock time of the next arrival as known now; infinity if there is none. May change after a finish."""
        ...

    def take(self) -> Request:
        """The request that `peek` spoke of."""
        ...


def play(
    engine: Engine,
    arrivals: Iterator[Request] | Arrivals,
    *,
    until: float,
    observer: Observer,
    faults: Sequence[Fault] = (),
    poll_s: float = 1.0,
    fuse: bool = True,
) -> None:
    """Run `engine` from its clock's now to the clock time `until`.

    Polls come at start + n × poll_s. With `fuse` (same records, faster) stretches of pure decode steps are computed at
    once. Requests that arrive while the engine is down are refused: they never reach it, and `telemetry.finished` gets
    them with finish_reason `error`.
    """
    raise NotImplementedError
