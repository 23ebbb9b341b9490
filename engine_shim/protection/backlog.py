"""What the engine has accepted and not finished, as protection counts it; and how fast that moves.

A request that was accepted a moment ago waits, although the engine takes it in only between two steps: otherwise all
that arrive during one step would be judged by the same, shorter queue.
"""

from __future__ import annotations

import threading

from ..request import Request, Stage
from .service_rate import ServiceRate


class Backlog:
    """Requests in the engine. `joined` may be called from any thread, the others by the one that steps the engine."""

    def __init__(self) -> None:
        self.rate = ServiceRate()
        self.free_slots = 0  # running requests that could still be added; 0 where something else holds the queue back
        self.waiting_tokens = 0
        self._waiting: set[Request] = set()
        self._running: set[Request] = set()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Requests that hold no KV."""
        return len(self._waiting)

    @property
    def in_engine(self) -> int:
        """All that were accepted and have not left."""
        return len(self._waiting) + len(self._running)

    @property
    def queued(self) -> int:
        """Requests that one more would have to wait for: what waits beyond the free slots."""
        return max(self.waiting - self.free_slots, 0)

    def expected_wait_s(self) -> float | None:
        """How long one more request would wait for admission; None if that is not known."""
        ahead = self.waiting + 1 - self.free_slots
        if ahead <= 0:
            return 0.0
        return ahead / self.rate.requests_per_s if self.rate.known and self.rate.requests_per_s > 0 else None

    def joined(self, request: Request) -> None:
        """It was accepted."""
        with self._lock:
            self._wait(request)

    def moved(self, request: Request) -> None:
        """It was given KV, or has lost it: its stage says which."""
        with self._lock:
            if request.stage is Stage.REQUEUE:
                self._running.discard(request)
                self._wait(request)
            else:
                self._stop_waiting(request)
                self._running.add(request)

    def left(self, request: Request) -> None:
        """It is gone; no matter if it was never here."""
        with self._lock:
            self._stop_waiting(request)
            self._running.discard(request)

    def _wait(self, request: Request) -> None:
        if request not in self._waiting:
            self._waiting.add(request)
            self.waiting_tokens += request.prompt_tokens

    def _stop_waiting(self, request: Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
            self.waiting_tokens -= request.prompt_tokens
