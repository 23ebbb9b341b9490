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
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from ..clock import VirtualClock
from ..engine.engine import Engine, OpenStep, RequestRejected
from ..engine.step_extras import step_fields
from ..faults import FOREVER, Fault, Faults
from ..request import Request, Stage
from ..runners.modelled.runner import NO_WORK, ModelRunner
from .fused import Fuser, Stretch
from .fused_short import Steps

# How long a step lasts that could schedule nobody although requests wait: the engine looks again and again.
EMPTY_STEP_S = 0.05


class Observer(Protocol):
    """Who writes down what the simulated engine shows. Called in the order of virtual time."""

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """Steps completed since the last call, oldest first: at each poll, and at the end.

        `columns` has the engine's step fields (step_extras), `readings` one device reading per step, averaged over that step
        (runners.model.READINGS: gr_engine_active_ratio, sm_active_ratio, sm_occupancy_ratio, tensor_active_ratio,
        dram_active_ratio, dram_bytes [in the step], power_watts, sm_clock_hertz). All arrays have the same length.
        In gaps between steps the device idles: engine.runner.idle_readings().
        """
        ...

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """A poll boundary. Every step that ended up to `now` has been given to `steps`.

        `open_record` (STEP_FIELDS, ended_at = 0) is the step in progress, and `engine.open_readings()` is what the
        device shows now. While the engine is down `engine.up` is False and `open_record` None.
        """
        ...

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """Something happened to the engine: `down` (detail: cause `restart` or `crash`) or `up` (detail: epoch)."""
        ...


class Arrivals(Protocol):
    """A source of requests that may learn from what has finished (closed loops). A plain iterator will do otherwise.

    Where clients give up it also has `next_leave() -> float`, when the next one does, and `leaving(now) -> ids`.
    """

    reacts: bool  # whether a request that finishes may bring another one sooner than `peek` says

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
    faults: Sequence[Fault] | Faults = (),
    poll_s: float = 1.0,
    fuse: bool = True,
) -> None:
    """Run `engine` from its clock's now to the clock time `until`.

    Polls come at start + n × poll_s, up to and including `until`. With `fuse` (same records, faster) stretches of pure
    decode steps are computed at once. Requests that arrive while the engine is down are refused: they never reach it,
    and `telemetry.finished` gets them with finish_reason `error`.
    """
    whole = faults if isinstance(faults, Faults) else Faults(faults)
    Player(engine, arrivals, until, observer, whole, poll_s, fuse).run()


class Player:
    """The loop behind `play`: what comes next, and whom it concerns."""

    def __init__(
        self,
        engine: Engine,
        arrivals: Iterator[Request] | Arrivals,
        until: float,
        observer: Observer,
        faults: Faults,
        poll_s: float,
        fuse: bool,
    ) -> None:
        if not isinstance(engine.clock, VirtualClock):
            raise ValueError("play needs an engine with a VirtualClock")
        self._engine = engine
        self._clock = engine.clock
        self._intake = Intake(OneAhead(arrivals) if isinstance(arrivals, Iterator) else arrivals, engine, faults)
        self._fuser = Fuser(engine, engine.clock, self._intake)
        self._until = until
        self._observer = observer
        self._faults = faults
        self._poll_s = poll_s
        self._fuse = fuse and not self._intake.impatient
        self._log = StepLog(engine.runner, observer, step_fields(engine.settings))
        self._start = self._clock.now()
        self._polls = 1
        self._next_poll = self._start + poll_s
        self._up_at = FOREVER  # when an engine that is down starts again
        self._try_s = FOREVER  # how long each of its starts takes before it fails
        self._next_try = FOREVER

    def run(self) -> None:
        """Until the end."""
        while (now := self._clock.now()) < self._until:
            if now >= self._faults.due:
                self._act(now)
            self._intake.deliver()
            if not self._engine.up:
                self._wait(min(self._up_at, self._next_try, self._intake.peek()))
                self._start_again()
            elif not self._run_stretch():
                self._run_step()
        self._log.flush()

    def _run_stretch(self) -> bool:
        now = self._clock.now()
        if not self._fuse or self._intake.followed or self._faults.step_by_step(now):
            return False
        faults = self._faults
        ends_by = min(self._next_poll, self._until, faults.next_outage(), faults.next_edge(now), faults.due)
        stretch = self._fuser.stretch(ends_by)
        if stretch is None:
            return False
        self._log.add_stretch(stretch)
        return True

    def _run_step(self) -> None:
        open_step = self._engine.begin()
        if open_step is None:
            self._wait(min(self._intake.peek(), self._faults.wakes_at(self._engine, self._clock.now())))
            return
        begun, plan = self._clock.now(), open_step.plan
        if plan.decode or plan.prefill:
            tokens, seconds = self._engine.runner.run(plan)
            work = self._engine.runner.work
        else:
            scheduler = self._engine.scheduler
            tokens, seconds, work = [], EMPTY_STEP_S if scheduler.waiting or scheduler.running else 0.0, NO_WORK
        end = self._faults.end_of(begun, seconds, plan, self._engine.settings, work[-1])
        if not self._pass_time(end, open_step, work):
            return
        self._engine.complete(tokens)
        self._log.add_step(open_step.record, work)

    def _pass_time(self, end: float, open_step: OpenStep, work: tuple[float, ...]) -> bool:
        """Move the clock to a step's end, polling on the way; False if the step never gets there."""
        stop = min(end, self._faults.next_outage(), self._until)
        if self._next_poll <= stop:
            expected_s = max(min(end, self._until) - open_step.record[1], 0.0)
            readings = self._engine.runner.readings(np.array([work]), np.array([expected_s]))
            normal = {name: float(values[0]) for name, values in readings.items()}
            while self._next_poll < end and self._next_poll <= stop:
                hung = self._faults.speed(self._next_poll) == 0.0
                open_step.readings = self._engine.runner.hung_readings() if hung else normal
                self._poll()
        self._clock.advance_to(stop)
        if stop == end:
            return True
        if stop == self._faults.next_outage():
            self._crash()
        return False

    def _wait(self, end: float) -> None:
        """Let the idle time pass until `end`, or until something else happens."""
        stop = min(end, self._until, self._faults.next_outage(), max(self._faults.due, self._clock.now()))
        while self._next_poll <= stop:
            self._poll()
        self._clock.advance_to(max(stop, self._clock.now()))
        if stop == self._faults.next_outage() and stop < end:
            self._crash()

    def _poll(self) -> None:
        self._clock.advance_to(self._next_poll)
        self._log.flush()
        open_step = self._engine.open
        self._observer.poll(self._next_poll, open_step.record if open_step else None, self._engine)
        self._polls += 1
        self._next_poll = self._start + self._polls * self._poll_s

    def _act(self, now: float) -> None:
        """Conditions change: what was done under the old ones is told first."""
        self._log.flush()
        self._faults.act(self._engine, now)

    def _crash(self) -> None:
        outage = self._faults.take_outage()
        if not self._engine.up:
            return  # it is down already
        self._log.flush()
        self._engine.crash()
        self._up_at, self._try_s = self._clock.now() + outage.down_s, outage.try_s
        self._next_try = self._clock.now() + outage.try_s
        self._observer.event("down", self._clock.now(), {"cause": outage.kind, "down_s": outage.down_s})

    def _start_again(self) -> None:
        """Start the engine, or see a start fail, if it is time."""
        now = self._clock.now()
        if now < self._up_at:
            if now >= self._next_try:
                self._next_try = now + self._try_s
                self._observer.event("failed_start", now, {"epoch": self._engine.epoch})
            return
        self._up_at = FOREVER
        self._engine.start()
        self._engine.runner.restarted()
        self._observer.event("up", self._clock.now(), {"epoch": self._engine.epoch})


class Intake:
    """Hands the engine what arrives: fused.Incoming."""

    def __init__(self, arrivals: Arrivals, engine: Engine, faults: Faults) -> None:
        self._arrivals = arrivals
        self._engine = engine
        self._faults = faults
        self.reacts = getattr(arrivals, "reacts", True)
        self.impatient = getattr(arrivals, "impatient", False)  # whether clients give up
        self._on_the_way: list[tuple[float, int, Request]] = []  # a heap: in the front end, until when
        self._entered = 0
        self.followed = False  # whether somebody looks at single tokens of a request that has come
        if not (self.impatient or faults.front_end.acts):
            self.peek = arrivals.peek  # type: ignore[method-assign]

    def peek(self) -> float:
        """When the engine has mail next."""
        at = self._arrivals.peek()
        if self.impatient:
            at = min(at, self._arrivals.next_leave())  # type: ignore[attr-defined]
        return min(at, self._on_the_way[0][0]) if self._on_the_way else at

    def deliver(self) -> None:
        """Hand over what has arrived by now, and say who has gone."""
        now = self._engine.clock.now()
        while self._arrivals.peek() <= now:
            request = self._arrivals.take()
            if request.prompt or request.listener is not None:
                self.followed = True
            at = self._faults.passed_at(request, request.arrived_at) if self._engine.up else now
            if at > now:
                self._entered += 1
                heappush(self._on_the_way, (at, self._entered, request))
            else:
                self._hand_in(request, now)
        while self._on_the_way and self._on_the_way[0][0] <= now:
            at, _, request = heappop(self._on_the_way)
            request.stages.append((Stage.RECEIVED, request.arrived_at, at))
            self._hand_in(request, now)
        if self.impatient:
            self._abort_leaving(now)

    def _hand_in(self, request: Request, now: float) -> None:
        if not self._engine.up:
            request.finish_reason = "error"
            request.finished_at = now
            self._engine.telemetry.finished(request)
            return
        with suppress(RequestRejected):  # counted and reported by the engine
            self._engine.add(request)

    def _abort_leaving(self, now: float) -> None:
        for request_id in self._arrivals.leaving(now):  # type: ignore[attr-defined]
            if not self._faults.loses_abort(now):
                self._engine.abort(request_id)


class OneAhead:
    """Arrivals from an iterator that is sorted by arrival: looks one request ahead."""

    reacts = False

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._next = next(requests, None)

    def peek(self) -> float:
        """Clock time of the next arrival; infinity if there is none."""
        return FOREVER if self._next is None else self._next.arrived_at

    def take(self) -> Request:
        """The next request; StopIteration if there is none."""
        request = self._next
        if request is None:
            raise StopIteration
        self._next = next(self._requests, None)
        return request


class StepLog:
    """Completed steps on their way to the observer, in blocks."""

    def __init__(self, runner: ModelRunner, observer: Observer, fields: tuple[str, ...]) -> None:
        self._runner = runner
        self._fields = fields
        self._observer = observer
        self._rows: list[list[float]] = []
        self._works: list[tuple[float, ...]] = []
        self._blocks: list[Stretch] = []

    def add_step(self, record: list[float], work: tuple[float, ...]) -> None:
        """One step."""
        self._rows.append(record)
        self._works.append(work)

    def add_stretch(self, stretch: Stretch | Steps) -> None:
        """Many at once."""
        if isinstance(stretch, Steps):
            self._rows += stretch.records
            self._works += stretch.works
            return
        self._close_rows()
        self._blocks.append(stretch)

    def flush(self) -> None:
        """Give the observer everything so far."""
        self._close_rows()
        if not self._blocks:
            return
        records = np.concatenate([block.records for block in self._blocks])
        work = np.concatenate([block.work for block in self._blocks])
        self._blocks = []
        columns = dict(zip(self._fields, records.T, strict=True))
        self._observer.steps(columns, self._runner.readings(work, columns["ended_at"] - columns["begun_at"]))

    def _close_rows(self) -> None:
        if self._rows:
            self._blocks.append(Stretch(np.array(self._rows, dtype=float), np.array(self._works)))
            self._rows, self._works = [], []
