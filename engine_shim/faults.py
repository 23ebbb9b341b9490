"""What can break: mechanisms that act on how fast steps go, or take the engine down. They never touch a metric.

A *slowdown* is a speed at which the device works between two clock times: 0 while a step hangs, 1/factor while steps
are slow. A step's end follows from its work and the speeds on its way. An *outage* ends the engine's process:
everything in flight is lost, and a new life begins after `down_s`, with an empty cache and counters at zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FOREVER = math.inf
SLOW_TRANSFER = "slow_transfer"  # a slowdown of the link between engines instead of a device


@dataclass(frozen=True)
class Slowdown:
    """The device works at `speed` (1 is normal, 0 stands still) from `at` to `until`, clock times."""

    at: float
    until: float
    speed: float
    kind: str = "slow_step"


@dataclass(frozen=True)
class Outage:
    """The engine's process ends at the clock time `at` and starts again `down_s` later; FOREVER: it does not."""

    at: float
    down_s: float
    kind: str = "crash"


Fault = Slowdown | Outage


def fault_from_table(table: Mapping[str, Any], start: float) -> Fault:
    """From a scenario's [[fault]] table; its times are seconds after the clock time `start`.

    Kinds: hung_step (at_s, until_s), slow_step (at_s, until_s, factor), restart (at_s, down_s), crash (at_s, and down_s
    if something starts it again). ValueError names the key that is wrong.
    """
    kind = table.get("kind")
    if kind not in _KEYS:
        raise ValueError(f"kind must be one of {', '.join(_KEYS)}, not {kind!r}")
    required, optional = _KEYS[kind]
    for key in table:
        if key != "kind" and key not in required + optional:
            raise ValueError(f"unknown key {key!r} for a {kind}; it has {', '.join(required + optional)}")
    for key in required:
        if key not in table:
            raise ValueError(f"key {key!r} is missing for a {kind}")
    for key in (k for k in required + optional if k in table):
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{key} must be a number of at least 0, not {value!r}")
    return _build(kind, table, start)


_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hung_step": (("at_s", "until_s"), ()),
    "slow_step": (("at_s", "until_s", "factor"), ()),
    SLOW_TRANSFER: (("at_s", "until_s", "factor"), ()),
    "restart": (("at_s", "down_s"), ()),
    "crash": (("at_s",), ("down_s",)),
}


def _build(kind: str, table: Mapping[str, Any], start: float) -> Fault:
    at = start + table["at_s"]
    if kind in ("restart", "crash"):
        return Outage(at, float(table.get("down_s", FOREVER)), kind)
    if table["until_s"] <= table["at_s"]:
        raise ValueError(f"until_s ({table['until_s']}) must come after at_s ({table['at_s']})")
    if kind == "hung_step":
        return Slowdown(at, start + table["until_s"], 0.0, kind)
    if table["factor"] <= 0:
        raise ValueError("factor must be above 0: how many times longer a step takes")
    return Slowdown(at, start + table["until_s"], 1.0 / table["factor"], kind)


class Faults:
    """All the faults of a run, as questions about time. Overlapping slowdowns multiply."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._slowdowns = [fault for fault in faults if isinstance(fault, Slowdown)]
        self._outages = sorted((fault for fault in faults if isinstance(fault, Outage)), key=lambda outage: outage.at)
        self._edges = sorted({edge for fault in self._slowdowns for edge in (fault.at, fault.until)})

    def speed(self, now: float) -> float:
        """How fast the device works at `now`."""
        return math.prod(fault.speed for fault in self._slowdowns if fault.at <= now < fault.until)

    def next_edge(self, now: float) -> float:
        """When the speed next changes, after `now`."""
        return next((edge for edge in self._edges if edge > now), FOREVER)

    def next_outage(self) -> float:
        """When the next outage comes; FOREVER if none is left."""
        return self._outages[0].at if self._outages else FOREVER

    def take_outage(self) -> Outage:
        """The next outage, which then is none any more."""
        return self._outages.pop(0)

    def step_end(self, begun: float, seconds: float) -> float:
        """When a step that begins at `begun` and is `seconds` of work ends; FOREVER if it never does."""
        if self.speed(begun) == 1.0 and begun + seconds <= self.next_edge(begun):
            return begun + seconds
        now, left = begun, seconds
        while True:
            speed, edge = self.speed(now), self.next_edge(now)
            if speed > 0 and now + left / speed <= edge:
                return now + left / speed
            if edge == FOREVER:
                return FOREVER
            left -= (edge - now) * speed
            now = edge
