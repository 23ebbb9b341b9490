"""The CUDA allocator's figures on the engine's page, as kv/fragmentation.py defines them.

A snapshot of the allocator takes milliseconds, so the figures are renewed at most every `EVERY_S` seconds. Where torch
has no CUDA device there are no series: absent, not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .exposition import Family, single

EVERY_S = 5.0
_HELP = {
    "cache_slack_ratio": "Reserved bytes that hold no tensor.",
    "stuck_ratio": "Reserved bytes that emptying the cache cannot return.",
    "internal_fragmentation_ratio": "Allocated bytes that nobody asked for: rounding.",
    "external_fragmentation_ratio": "Inactive bytes outside the largest inactive block of the worst pool.",
    "retries_total": "Allocations that succeeded only after the cache was emptied.",
    "ooms_total": "Allocations that failed for want of memory.",
}


class AllocatorPage:
    """`read` takes the figures, by the names of `_HELP`; what it leaves out is not shown."""

    def __init__(self, read: Callable[[], dict[str, float]], now: Callable[[], float]) -> None:
        self._read = read
        self._now = now
        self._due = float("-inf")
        self._figures: dict[str, float] = {}

    def families(self) -> list[Family]:
        """One family for each figure."""
        return [
            single(f"shim:torch_allocator_{name}", _kind(name), text, partial(self._figure, name))
            for name, text in _HELP.items()
        ]

    def _figure(self, name: str) -> float | None:
        now = self._now()
        if now >= self._due:
            self._due = now + EVERY_S
            self._figures = self._read()
        return self._figures.get(name)


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"
