"""Getting transitions to a receiver that may be down: a bounded queue, back-off with jitter, counters.

A sink says only whether trying again could help (`Retry`) or not (`Reject`). The queue has no task and no clock of its
own: the agent calls `pump(now)` each tick. Where the newest word on an incident is all that matters
(`newest_only`), it replaces what still waits; otherwise the oldest is dropped when the queue is full.
Idempotency key of a transition: incident id, kind and time.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ..model import Transition

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
_ERROR_CHARS = 300


class Retry(Exception):  # noqa: N818  (an answer of a receiver)
    """Not delivered; trying again may help. The message says what was wrong."""


class Reject(Exception):  # noqa: N818
    """Refused; trying again would not help. The message says why."""


class Sink(Protocol):
    """One kind of receiver. Raises Retry or Reject; anything else counts as Reject."""

    name: str
    newest_only: bool

    async def send(self, transition: Transition) -> None:
        """Deliver one transition."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and files."""
        ...


class Delivery:
    """The queue before one sink. `counts`: sent, retries, rejected, dropped, replaced."""

    def __init__(
        self,
        sink: Sink,
        *,
        limit: int = 1000,
        delivered: Callable[[str, Transition], None] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.sink = sink
        self.limit = limit
        self.counts: Counter[str] = Counter()
        self.last_error = ""
        self.next_try_at = 0.0
        self._delivered = delivered
        self._jitter = jitter
        self._failures = 0
        self._busy = False
        self._queue: dict[object, Transition] = {}

    @property
    def waiting(self) -> int:
        """Transitions not delivered yet."""
        return len(self._queue)

    def offer(self, transition: Transition) -> None:
        """Queue a transition."""
        key: object = transition.incident.id if self.sink.newest_only else _key(transition)
        if self._queue.pop(key, None) is not None:
            self.counts["replaced"] += 1
        self._queue[key] = transition
        while len(self._queue) > self.limit:
            self._queue.pop(next(iter(self._queue)))
            self.counts["dropped"] += 1

    def due(self, now: float) -> bool:
        """Whether `pump` would do anything."""
        return bool(self._queue) and not self._busy and now >= self.next_try_at

    async def pump(self, now: float) -> None:
        """Send what waits, oldest first, until the queue is empty or the receiver asks for patience."""
        if not self.due(now):
            return
        self._busy = True
        try:
            while self._queue:
                key, transition = next(iter(self._queue.items()))
                if not await self._try(now, transition):
                    return
                if self._queue.get(key) is transition:  # a newer word may have come while this one was on its way
                    del self._queue[key]
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Close the sink; what still waits is owed by the store at the next start."""
        await self.sink.aclose()

    async def _try(self, now: float, transition: Transition) -> bool:
        """Whether the transition is done with, delivered or refused."""
        try:
            await self.sink.send(transition)
        except Retry as error:
            self.counts["retries"] += 1
            wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._failures)
            self._failures = min(self._failures + 1, 16)
            self.next_try_at = now + wait * (0.5 + 0.5 * self._jitter())
            self._fails(str(error))
            return False
        except Exception as error:  # a Reject, or a fault of the sink's own: this transition cannot be sent
            self.counts["rejected"] += 1
            self._fails(f"refused: {error}" if isinstance(error, Reject) else f"{type(error).__name__}: {error}")
        else:
            self.counts["sent"] += 1
            if self.last_error:
                log.info("sink %s delivers again", self.sink.name)
            self.last_error = ""
        self._failures, self.next_try_at = 0, 0.0
        if self._delivered is not None:
            self._delivered(self.sink.name, transition)
        return True

    def _fails(self, why: str) -> None:
        if not self.last_error:
            log.warning("sink %s: %s", self.sink.name, why[:_ERROR_CHARS])
        self.last_error = why[:_ERROR_CHARS]


def _key(transition: Transition) -> tuple[str, str, float]:
    return transition.incident.id, transition.kind, transition.at
