"""Faults in real time: the same mechanisms as in virtual time (faults/), behind the server.

A slowdown stretches a step that was really computed; an outage kills this process, as nothing else is a crash to those
who watch: whoever supervises it decides about a restart. Faults may come and go while the engine runs (http/admin.py): any
thread may `add` and `end` them, and the engine's thread takes the change in before its next step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_shim.clock import Clock
from engine_shim.engine.engine import Engine
from engine_shim.faults import KINDS, Fault, Faults, fault_from_table
from engine_shim.faults.scheduler import HeldUpScheduler
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import Runner, StepPlan

LONGEST_WAIT_S = 86_400.0  # how long a step hangs that never ends
LOOK_EVERY_S = 0.1  # how often a hung step looks whether its fault has been ended
MAX_FAULTS = 64


def table_from_text(text: str) -> dict[str, Any]:
    """`kind:key=number,key=number` as a table. ValueError names the text."""
    kind, _, rest = text.partition(":")
    table: dict[str, Any] = {"kind": kind}
    try:
        for pair in filter(None, rest.split(",")):
            key, _, number = pair.partition("=")
            table[key] = float(number)
    except ValueError as error:
        raise ValueError(f"fault {text!r}: {error}") from error
    return table


def live_fault(table: Mapping[str, Any], start: float, runner: str) -> Fault:
    """A fault that can be played on this `runner` (torch or model) in real time. ValueError says why not."""
    fault = fault_from_table(table, start)
    live = KINDS[table["kind"]].live
    if not live:
        raise ValueError(f"{table['kind']} is played in virtual time only; use `simulate`")
    if live == "model" and runner != "model":
        raise ValueError(f"{table['kind']} needs a modelled device; use --runner model")
    return fault


@dataclass(frozen=True, slots=True)
class LiveFault:
    """A fault under its number; `table` as it was asked for."""

    number: int
    table: dict[str, Any]
    fault: Fault


class LiveFaults:
    """The faults of a serving engine. `current` is replaced as a whole whenever one comes or goes."""

    def __init__(self, texts: Sequence[str], clock: Clock, runner: str = "torch") -> None:
        self._clock, self._runner = clock, runner
        self._lock = threading.Lock()
        self._listed: list[LiveFault] = []
        self._numbers = 0
        self._taken_in: Faults | None = None
        self._timers: dict[int, threading.Timer] = {}
        self.current = Faults(())
        for text in texts:
            try:
                self.add(table_from_text(text))
            except ValueError as error:
                message = str(error) if str(error).startswith("fault ") else f"fault {text!r}: {error}"
                raise ValueError(message) from error

    def add(self, table: Mapping[str, Any]) -> LiveFault:
        """Begin a fault; its times are seconds from now. ValueError names what is wrong."""
        fault = live_fault(table, self._clock.now(), self._runner)
        with self._lock:
            if len(self._listed) >= MAX_FAULTS:
                raise ValueError(f"there are {MAX_FAULTS} faults already; end some")
            self._numbers += 1
            listed = LiveFault(self._numbers, dict(table), fault)
            self._replace([*self._listed, listed])
        self._arm(listed)
        return listed

    def end(self, number: int) -> bool:
        """End a fault; whether there was one of that number."""
        with self._lock:
            left = [listed for listed in self._listed if listed.number != number]
            found = len(left) < len(self._listed)
            self._replace(left)
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()
        return found

    def listed(self) -> list[LiveFault]:
        """All that have been asked for and not ended."""
        with self._lock:
            return list(self._listed)

    def act(self, engine: Engine) -> None:
        """Bring the engine's conditions to now; its own thread calls it before each step."""
        current, now = self.current, self._clock.now()
        if current is not self._taken_in:
            self._taken_in = current
            scheduler = engine.scheduler
            if isinstance(scheduler, HeldUpScheduler):
                scheduler.hold_by(current.gates(), current.stalls)
        if now >= current.due:
            current.act(engine, now)

    def _replace(self, listed: list[LiveFault]) -> None:
        self._listed = listed
        self.current = Faults([entry.fault for entry in listed], before=self.current)

    def _arm(self, listed: LiveFault) -> None:
        """Kill this process at an outage's time, whatever it does then. `down_s` is for its supervisor to keep."""
        if listed.table["kind"] not in ("restart", "crash"):
            return
        delay_s = max(0.0, listed.fault.at - self._clock.now())
        timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        self._timers[listed.number] = timer
        timer.start()


class FaultyRunner:
    """A runner whose steps take as long as `faults` let them. `wait` lets seconds pass."""

    def __init__(
        self, inner: Runner, faults: LiveFaults, settings: EngineSettings, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        self.inner = inner
        self._faults = faults
        self._settings = settings
        self._clock = clock
        self._wait = wait

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """As the inner runner, and then the rest of the stretched step."""
        begun = self._clock.now()
        tokens, _ = self.inner.run(plan)
        took_s = self._clock.now() - begun
        work = getattr(getattr(self.inner, "model", None), "work", (0.0,))
        while True:
            faults = self._faults.current
            end = faults.end_of(begun, took_s, plan, self._settings, min(work[-1], took_s))
            left_s = end - self._clock.now()
            if left_s <= 0:
                return tokens, self._clock.now() - begun
            stopped = self._wait(min(left_s, LOOK_EVERY_S if left_s > 2 * LOOK_EVERY_S else LONGEST_WAIT_S))
            if stopped:
                return tokens, self._clock.now() - begun
