"""How often what may be asked. The driver's lock is the price of every question, and it is paid by the engine."""

from __future__ import annotations

import math

import msgspec

USAGE_HZ = 5.0
"""Utilisation renews itself every 1/6–1 s: asking more often buys nothing."""
PROCESSES_S = 10.0
"""A process list has been seen to hold the driver for 4.5 ms."""


class Rates(msgspec.Struct, frozen=True):
    """What the configuration asks for; faster than the driver can bear is not asked."""

    usage_hz: float = 1.0
    slow_every_s: float = 10.0
    processes_every_s: float = 10.0


class Pace:
    """Says when something is due again: at once, then every `every_s`, never sooner.

    `spread` (0–1) delays the second time by that share of a period, once, so that devices do not queue up in one second.
    """

    __slots__ = ("_due_at", "_spread", "every_s")

    def __init__(self, every_s: float, spread: float = 0.0) -> None:
        self.every_s = every_s
        self._spread = spread
        self._due_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether it is due at `now`; if so, the next time is a period away."""
        if now < self._due_at - 1e-6:
            return False
        self._due_at = now + self.every_s * (1 + self._spread)
        self._spread = 0.0
        return True


class Backoff:
    """When to try again what has failed: after `first_s`, then twice as long each time, at most `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0
        self.again_at = -math.inf

    def failed(self, now: float) -> None:
        """Note a failure at `now`."""
        self.again_at = now + min(self._first_s * 2 ** min(self.failures, 20), self._longest_s)
        self.failures += 1

    def due(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self.again_at
