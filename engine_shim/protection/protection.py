"""Everything that may turn a request away for the sake of the others, as the settings ask for it.

`refusal` is asked at the door, in this order: the sender's rate limit, then the late ones: concurrency, deadline, queue
length, queued tokens. The engine tells what it does with those that were let in; nothing here changes by itself between
two of its events, so that a stretch of decode steps may be computed at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

from ..request import Request
from ..settings.engine import EngineSettings
from ..step import StepPlan, StopReason
from .backlog import Backlog
from .concurrency import ConcurrencyCap
from .deadline import Deadlines
from .queue_length import QueueLengthCap
from .queued_tokens import QueuedTokensCap
from .rate_limit import RateLimit
from .refusal import ALWAYS, CONCURRENCY, DEADLINE, QUEUE_FULL, QUEUED_TOKENS, RATE_LIMITED, Refusal


class LateGuard(Protocol):
    """One mechanism of overload protection."""

    def refusal(self, request: Request, backlog: Backlog, now: float) -> Refusal | None:
        """Why the request should not come in now; None if it may."""
        ...


class Unprotected:
    """Refuses nothing and remembers nothing: the default."""

    def refusal(self, request: Request, now: float) -> Refusal | None:
        """Never."""
        return None

    def joined(self, request: Request) -> None:
        """See Protection."""

    def queued(self, request: Request) -> None:
        """See Protection."""

    def expired(self, now: float) -> Sequence[Request]:
        """See Protection."""
        return ()

    def next_expiry(self) -> float:
        """See Protection."""
        return math.inf

    def planned(self, plan: StepPlan, running: int, waiting: int, now: float) -> None:
        """See Protection."""

    def left(self, request: Request, now: float) -> None:
        """See Protection."""


class Protection(Unprotected):
    """What the settings ask for, over one life of an engine. `refusal` and `joined` may be called from any thread."""

    def __init__(self, settings: EngineSettings) -> None:
        self.backlog = Backlog()
        self.rate_limit = _rate_limit(settings)
        self.deadlines = Deadlines() if settings.deadline_rejection else None
        self.queue_length = QueueLengthCap(settings.queue_target_s) if settings.queue_target_s else None
        target_s = settings.queued_tokens_target_s
        self.queued_tokens = QueuedTokensCap(target_s) if target_s else None
        concurrency = ConcurrencyCap(settings.max_concurrency) if settings.max_concurrency else None
        guards = (concurrency, self.deadlines, self.queue_length, self.queued_tokens)
        self._late: list[LateGuard] = [guard for guard in guards if guard is not None]
        self._max_num_seqs = settings.max_num_seqs
        self._lock = threading.Lock()

    def refusal(self, request: Request, now: float) -> Refusal | None:
        """Why the request is turned away at the door; None if it may come in."""
        with self._lock:
            early = self.rate_limit.refusal(request) if self.rate_limit is not None else None
            if early is not None:
                return early
            for guard in self._late:
                late = guard.refusal(request, self.backlog, now)
                if late is not None:
                    return late
        return None

    def joined(self, request: Request) -> None:
        """It was let in; the engine takes it into its queue between two steps (`queued`)."""
        self.backlog.joined(request)

    def queued(self, request: Request) -> None:
        """It stands in the queue."""
        if self.deadlines is not None:
            self.deadlines.joined(request)

    def expired(self, now: float) -> Sequence[Request]:
        """Those in the queue that have missed their deadlines."""
        return () if self.deadlines is None else self.deadlines.expired(now)

    def next_expiry(self) -> float:
        """Clock time before which `expired` has nothing to say."""
        return math.inf if self.deadlines is None else self.deadlines.next_expiry()

    def planned(self, plan: StepPlan, running: int, waiting: int, now: float) -> None:
        """A step was planned, after which so many run and wait."""
        for request in (*plan.preempted, *plan.admitted):
            self.backlog.moved(request)
        unblocked = plan.stop_reason is StopReason.QUEUE_EMPTY
        self.backlog.free_slots = self._max_num_seqs - running if unblocked else 0
        self.backlog.rate.queue(waiting > 0, now)

    def left(self, request: Request, now: float) -> None:
        """It is gone, for whatever reason."""
        self.backlog.left(request)
        if request.finish_reason in ("stop", "length"):
            self.backlog.rate.finished(request, now)


def protection_for(settings: EngineSettings) -> Unprotected:
    """What the settings ask for."""
    return Protection(settings) if _reasons(settings) else Unprotected()


def rejection_reasons(settings: EngineSettings) -> tuple[str, ...]:
    """All reasons for which an engine of these settings may turn requests away, for its metrics."""
    return (*ALWAYS, *(reason for reason in _reasons(settings) if reason not in ALWAYS))


def _reasons(settings: EngineSettings) -> list[str]:
    asked = {
        RATE_LIMITED: settings.rate_limit_per_s,
        CONCURRENCY: settings.max_concurrency,
        DEADLINE: settings.deadline_rejection,
        QUEUE_FULL: settings.queue_target_s,
        QUEUED_TOKENS: settings.queued_tokens_target_s,
    }
    return [reason for reason, value in asked.items() if value]


def _rate_limit(settings: EngineSettings) -> RateLimit | None:
    if not settings.rate_limit_per_s:
        return None
    return RateLimit(settings.rate_limit_per_s, settings.rate_limit_burst or math.ceil(settings.rate_limit_per_s))
