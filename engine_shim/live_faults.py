"""Faults in real time: slow and hung steps behind the server, and the end of its process.

The same mechanisms as in virtual time (faults.py). A slowdown stretches a step that was really computed; an outage
kills this process, as nothing else is a crash to those who watch: whoever supervises it decides about a restart.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

from engine_shim.clock import Clock
from engine_shim.faults import FOREVER, SLOW_TRANSFER, Fault, Faults, fault_from_table
from engine_shim.step import Runner, StepPlan

LONGEST_WAIT_S = 86_400.0  # how long a step hangs that never ends


def faults_from_texts(texts: Sequence[str], start: float) -> Faults:
    """From `kind:key=number,key=number`, times in seconds after the clock time `start`. ValueError names the text."""
    return Faults([_fault(text, start) for text in texts])


def _fault(text: str, start: float) -> Fault:
    kind, _, rest = text.partition(":")
    table: dict[str, object] = {"kind": kind}
    try:
        for pair in filter(None, rest.split(",")):
            key, _, number = pair.partition("=")
            table[key] = float(number)
        if kind == SLOW_TRANSFER:
            raise ValueError("there is no link between engines here; play it with `simulate`")
        return fault_from_table(table, start)
    except ValueError as error:
        raise ValueError(f"fault {text!r}: {error}") from error


def arm_outage(faults: Faults, clock: Clock) -> None:
    """Kill this process at the first outage's time, whatever it does then. `down_s` is for its supervisor to keep."""
    if faults.next_outage() < FOREVER:
        delay_s = max(0.0, faults.next_outage() - clock.now())
        timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


class FaultyRunner:
    """A runner whose steps take as long as `faults` let them. `wait` lets seconds pass."""

    def __init__(self, inner: Runner, faults: Faults, clock: Clock, wait: Callable[[float], object]) -> None:
        self.inner = inner
        self._faults = faults
        self._clock = clock
        self._wait = wait

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """As the inner runner, and then the rest of the stretched step."""
        begun = self._clock.now()
        tokens, _ = self.inner.run(plan)
        end = self._faults.step_end(begun, self._clock.now() - begun)
        left_s = end - self._clock.now()
        if left_s > 0:
            self._wait(LONGEST_WAIT_S if end == FOREVER else left_s)
        return tokens, self._clock.now() - begun
