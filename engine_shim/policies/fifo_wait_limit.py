"""`scheduling = "fifo_wait_limit"`: others may pass a blocked head, but not one that has starved for `wait_limit_s`.

Passing (`admission = "bypass"`) keeps slots busy and lets a large request starve: whatever becomes free is taken by
smaller ones before it adds up. Once a request has waited longer than the limit, nobody behind it is admitted before it:
what becomes free collects for it. The wait is bounded by the limit, plus the time in which those that run and those
before it finish.
"""

from __future__ import annotations

from ..request import Stage
from .fifo import Fifo
from .waiting import WINDOW, WaitingQueue


class FifoWaitLimit(Fifo):
    """See the module."""

    def passable(self, queue: WaitingQueue, now: float) -> int:
        """As far as the first request that has waited too long, itself included."""
        for index, request, _ in queue.window():
            if now - request.stage_since >= self.settings.wait_limit_s:
                return index + 1
            if request.stage is Stage.QUEUE:
                break  # all behind it came later
        return WINDOW
