"""A scheduler in which requests may be held up by more than KV: some are deferred, others stalled by their clients.

A deferred request has arrived and is not in the queue yet. A stalled one keeps its KV and gets no tokens. Both are rare,
so the plain scheduler knows neither; an engine gets this one where a fault needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..engine.counters import Counters
from ..engine.scheduler import Scheduler
from ..kv.pool import KvPool
from ..request import Request, Stage
from ..settings.engine import EngineSettings
from ..step import StepPlan
from .clients import StalledClient
from .deferred import Gate
from .interval import FOREVER


class HeldUpScheduler(Scheduler):
    """The plain scheduler with `gates` before its queue and `stalls` among its running requests."""

    def __init__(
        self,
        settings: EngineSettings,
        pool: KvPool,
        counters: Counters,
        gates: Sequence[Gate] = (),
        stalls: Sequence[StalledClient] = (),
    ) -> None:
        super().__init__(settings, pool, counters)
        self.gates = list(gates)
        self.stalls = list(stalls)
        self.deferred: list[Request] = []
        self.stalled: list[Request] = []
        self._look_at = FOREVER  # when the deferred ones are looked at again

    def schedule(self, now: float) -> StepPlan:
        """As the plain one, after looking at who is held up."""
        self._now = now
        if now >= self._look_at:
            self._release(now)
        if self.stalls or self.stalled:
            self._stall(now)
        return super().schedule(now)

    def add(self, request: Request, now: float) -> None:
        """Queue a request, or defer it."""
        if self._may_join(request, now):
            super().add(request, now)
            return
        self.followed += bool(request.prompt) or request.listener is not None
        request.enter(Stage.QUEUE, now)
        self.deferred.append(request)
        self._look_at = min(self._look_at, self._gates_wake_at(now))

    def finish(self, request: Request, reason: str, now: float) -> None:
        """As the plain one, wherever the request is."""
        for gate in self.gates:
            gate.left(request)
        if self.deferred:
            self._look_at = now  # its adapter's place may be free
        if request in self.deferred:
            self.deferred.remove(request)
            self.order.enqueue(self.waiting, request, self.admission.promise_blocks(request))
        super().finish(request, reason, now)

    def requests(self) -> Iterator[Request]:
        """The deferred ones come last."""
        yield from super().requests()
        yield from self.deferred

    def hold_by(self, gates: Sequence[Gate], stalls: Sequence[StalledClient]) -> None:
        """Other faults hold requests up from now on."""
        self.gates, self.stalls = list(gates), list(stalls)
        self._look_at = -FOREVER

    def wakes_at(self, now: float) -> float:
        """When somebody who is held up may go on, if nothing else happens."""
        if not self.deferred and not self.stalled:
            return FOREVER
        ends = (stall.until for stall in self.stalls if self.stalled)
        return min((*ends, self._look_at if self.deferred else FOREVER))

    def _gates_wake_at(self, now: float) -> float:
        return min((gate.wakes_at(now) for gate in self.gates), default=FOREVER)

    def _may_join(self, request: Request, now: float) -> bool:
        opened = [gate.is_open(request, now) for gate in self.gates]  # each begins its work, whatever the others say
        return all(opened)

    def _release(self, now: float) -> None:
        ready = [request for request in self.deferred if self._may_join(request, now)]
        for request in ready:
            self.deferred.remove(request)
            self.order.enqueue(self.waiting, request, self.admission.promise_blocks(request))
        self._look_at = self._gates_wake_at(now) if self.deferred else FOREVER

    def _stall(self, now: float) -> None:
        acting = [stall for stall in self.stalls if stall.acts(now)]
        for request in [r for r in self.stalled if not any(stall.holds(r) for stall in acting)]:
            self._go_on(request)
        for request in [r for r in self.decoding if any(stall.holds(r) for stall in acting)]:
            self.decoding.remove(request)
            self.context_tokens -= request.computed_tokens
            self.stalled.append(request)

    def _go_on(self, request: Request) -> None:
        self.stalled.remove(request)
        self.decoding.append(request)
        self.context_tokens += request.computed_tokens

    def _let_go(self, request: Request) -> None:
        if request in self.stalled:  # the plain scheduler knows it as one that decodes
            self._go_on(request)
        super()._let_go(request)
