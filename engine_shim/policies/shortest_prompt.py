"""`scheduling = "shortest_prompt"`: the shortest prompt first, which gives the lowest mean time to first token.

Long prompts starve while short ones keep coming, unless `wait_limit_s` is set: one that has waited so long goes before
all others that have not. Preempted requests go first, as under FIFO; equal prompts in order of arrival.
"""

from __future__ import annotations

import math
from collections import deque

from ..request import Request, Stage
from ..settings.engine import EngineSettings
from .fifo import Fifo
from .waiting import WaitingQueue


class ShortestPrompt(Fifo):
    """See the module. Promoted requests keep the order of their arrival among themselves."""

    ranked = True

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._wait_limit_s = settings.wait_limit_s or math.inf
        self._arrivals: deque[Request] = deque()  # some of them have left the queue by another way

    def rank(self, request: Request, now: float) -> float:
        """Preempted ones, then the starving, then by length."""
        if request.stage is Stage.REQUEUE:
            return -math.inf
        return 0 if now - request.stage_since >= self._wait_limit_s else request.prompt_tokens

    def enqueue(self, queue: WaitingQueue, request: Request, need_blocks: int) -> None:
        """Behind all prompts that are as short."""
        queue.insert(request, need_blocks, rank=request.prompt_tokens)
        if self._wait_limit_s < math.inf:
            self._arrivals.append(request)

    def promote(self, queue: WaitingQueue, now: float) -> None:
        """Move starving requests before all that are not."""
        arrivals = self._arrivals
        while arrivals and (arrivals[0].stage is not Stage.QUEUE or self.changes_at() <= now):
            request = arrivals.popleft()
            if request.stage is Stage.QUEUE:
                need_blocks = queue.remove(request)
                queue.insert(request, need_blocks, rank=0)

    def changes_at(self) -> float:
        """When the oldest arrival will have starved."""
        return self._arrivals[0].stage_since + self._wait_limit_s if self._arrivals else math.inf

    def passable(self, queue: WaitingQueue, now: float) -> int:
        """Nobody passes the first that has been promoted; before it stand preempted ones only."""
        preempted = queue.count_up_to(-math.inf)
        return preempted + 1 if queue.count_up_to(0) > preempted else super().passable(queue, now)
