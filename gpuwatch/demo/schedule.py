"""The demand of a scenario for the real engine, as the engine's own command tells it: what to serve with, and when to ask."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from .child import problem_in
from .load import Arrival
from .problem import DemoError

_TIMEOUT_S = 60.0


class Header(msgspec.Struct, frozen=True):
    """The first line: how long it goes, which options make its engine, what breaks and when (seconds of the load)."""

    schedule: int
    scenario: str
    duration_s: float
    serve: list[str]
    faults: list[dict[str, Any]] = []
    about: str = ""

    def fault_options(self, lead_s: float) -> list[str]:
        """The faults as options of `serve`, for a load that begins `lead_s` after the engine."""
        out = []
        for table in self.faults:
            shifted = {k: v + lead_s if k in ("at_s", "until_s") else v for k, v in table.items() if k != "kind"}
            out += ["--fault", f"{table['kind']}:" + ",".join(f"{k}={v}" for k, v in shifted.items())]
        return out

    @property
    def ends_the_engine(self) -> bool:
        """Whether the engine's end is part of the plot."""
        return any(table.get("kind") in ("crash", "restart") for table in self.faults)


def read_schedule(scenario: str, seed: int) -> tuple[Header, list[Arrival]]:
    """Ask the engine package for a scenario's demand. Raises DemoError with its words."""
    command = [sys.executable, "-m", "engine_shim", "schedule", scenario, "--device", "torch", "--seed", str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DemoError(f"scenario {scenario}: no schedule within {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise DemoError(problem_in(done.stderr.decode("utf-8", "replace")) or f"exit code {done.returncode}")
    try:
        first, *rest = done.stdout.splitlines()
        header = msgspec.json.decode(first, type=Header)
        arrivals = [msgspec.json.decode(line, type=Arrival) for line in rest]
    except (ValueError, msgspec.MsgspecError) as error:
        raise DemoError(f"scenario {scenario}: the schedule cannot be read: {error}") from error
    if header.schedule != 1:
        raise DemoError(f"scenario {scenario}: schedule version {header.schedule}, this gpuwatch reads 1")
    return header, arrivals
