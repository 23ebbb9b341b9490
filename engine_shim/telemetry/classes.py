"""What an engine that schedules by priority shows of each class: who waits, for how long, and first tokens.

Means over all requests hide what priorities are for: the few that are waited for, and the many that have time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

from ..request import PRIORITY_CLASSES, Request, Stage
from .exposition import Family, Histogram, by_label, histograms_by_label
from .live import LiveRequests

# fmt: off
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0,
                      20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
# fmt: on


class ClassMetrics:
    """Follows stages; `families` are for the engine's page."""

    def __init__(self, live: LiveRequests, now: Callable[[], float]) -> None:
        self._live = live
        self._now = now
        self._first_tokens = {name: Histogram(FIRST_TOKEN_BOUNDS) for name in PRIORITY_CLASSES}

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Book a first token."""
        if stage is Stage.DECODE and now == request.first_token_at:
            self._book(request)

    def finished(self, request: Request) -> None:
        """Book the first token of a request that ended with it."""
        if request.output_tokens == 1 and request.first_token_at > 0:
            self._book(request)

    def _book(self, request: Request) -> None:
        name = PRIORITY_CLASSES[request.priority]
        self._first_tokens[name].observe(request.first_token_at - request.arrived_at)

    def families(self) -> list[Family]:
        """For the engine's page."""
        return [
            by_label(
                "shim:class_requests_waiting", "gauge",
                "Requests without KV, by priority class.", "class", self._waiting,
            ),
            by_label(
                "shim:class_oldest_wait_seconds", "gauge",
                "The longest wait of those that wait now, by priority class.", "class", self._oldest_wait_s,
            ),
            histograms_by_label(
                "shim:class_time_to_first_token_seconds",
                "Arrival to first token, by priority class.", "class", self._first_tokens,
            ),
        ]  # fmt: skip

    def _waiting(self) -> dict[str, float]:
        counts = Counter(request.priority for request in chain(self._live.queued, self._live.requeued))
        return {name: counts[index] for index, name in enumerate(PRIORITY_CLASSES)}

    def _oldest_wait_s(self) -> dict[str, float]:
        now = self._now()
        waits = dict.fromkeys(PRIORITY_CLASSES, 0.0)
        for request in chain(self._live.queued, self._live.requeued):
            name = PRIORITY_CLASSES[request.priority]
            waits[name] = max(waits[name], now - request.stage_since)
        return waits
