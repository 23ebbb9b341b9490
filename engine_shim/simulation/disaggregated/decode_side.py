"""The decode engine's scheduler: admission reserves blocks for a prompt whose KV then comes over the link.

A request that is preempted here has lost that KV; it is computed again on the spot, as on any engine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from ...engine.counters import Counters
from ...engine.scheduler import Scheduler
from ...kv.pool import KvPool
from ...request import Request, Stage
from ...settings.engine import EngineSettings
from ...step import StepPlan

# (request, tokens whose KV it lacks, clock time) -> clock time of arrival
Fetch = Callable[[Request, int, float], float]
Tell = Callable[[Request, Stage, float], None]


class DecodeScheduler(Scheduler):
    """Running requests in stage TRANSFER hold blocks and wait for what belongs into them; they are not preempted."""

    def __init__(self, settings: EngineSettings, pool: KvPool, counters: Counters, fetch: Fetch, tell: Tell) -> None:
        super().__init__(settings, pool, counters)
        self._fetch = fetch
        self._tell = tell
        self._coming: deque[tuple[float, Request]] = deque()  # in the order of their arrival

    @property
    def kv_transfers(self) -> int:
        """Requests that wait for their KV."""
        return sum(request.stage is Stage.TRANSFER for _, request in self._coming)

    def arrives_at(self) -> float:
        """Clock time at which the next KV is there; infinity if none is on its way."""
        return self._coming[0][0] if self._coming else math.inf

    def only_waits(self, now: float) -> bool:
        """Whether there is nothing to do but wait for a transfer."""
        return bool(self.running) and self.kv_transfers == len(self.running) and self.arrives_at() > now

    def schedule(self, now: float) -> StepPlan:
        """As usual, with those whose KV has come."""
        while self.arrives_at() <= now:
            _, request = self._coming.popleft()
            if request.stage is Stage.TRANSFER:  # and has not been aborted meanwhile
                request.enter(Stage.PREFILL, now)
                self._tell(request, Stage.PREFILL, now)
        return super().schedule(now)

    def _start(self, index: int, budget: int, alone: bool, plan: StepPlan) -> int | None:
        request = self.waiting.at(index)
        if request.preemptions:
            return super()._start(index, budget, alone, plan)
        self._join(index, self.admission.hits(request), Stage.TRANSFER, plan)
        self._grow(request, request.prompt_tokens, plan)
        lacking = request.prompt_tokens - 1 - request.computed_tokens  # the last token is computed here
        request.computed_tokens += lacking
        self.written_tokens += lacking
        self.counters.prompt_tokens += lacking
        self._coming.append((self._fetch(request, lacking, self._now), request))
        return 0

    def _victim(self) -> Request:
        """Somebody whose KV is here already; there is one, since somebody grows."""
        return self.order.victim([request for request in self.running if request.stage is not Stage.TRANSFER])
