"""`scheduling = "fifo"`: first come, first served; and the answers that other orders change.

A preempted request goes to the front of the queue, and the one admitted last is preempted first: the oldest work is
never the one that is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..request import Request, Stage
from ..settings.engine import EngineSettings
from .waiting import WINDOW, WaitingQueue


class Fifo:
    """The order of service. Subclasses override the questions that they answer differently."""

    ranked = False  # whether requests have a rank of their own

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    def rank(self, request: Request, now: float) -> float:
        """The place of a waiting request among others, the smaller first."""
        return -math.inf if request.stage is Stage.REQUEUE else 0.0

    def enqueue(self, queue: WaitingQueue, request: Request, need_blocks: int) -> None:
        """Put a new request in its place."""
        queue.append(request, need_blocks)

    def requeue(self, queue: WaitingQueue, request: Request, need_blocks: int) -> None:
        """Put a preempted request in its place."""
        queue.push_front(request, need_blocks)

    def promote(self, queue: WaitingQueue, now: float) -> None:
        """Move those that have waited too long; called at the start of each step."""

    def changes_at(self) -> float:
        """Clock time before which `promote` will move nobody."""
        return math.inf

    def passable(self, queue: WaitingQueue, now: float) -> int:
        """From how many of the first positions a request may be taken when those before it do not fit (`bypass`)."""
        return WINDOW

    def victim(self, running: Sequence[Request]) -> Request:
        """Who of `running` (in order of admission, not empty) is preempted when blocks run out."""
        return running[-1]

    def outranked(self, head: Request, running: Sequence[Request]) -> list[Request]:
        """Whom a head that cannot get in may displace, the first to go first."""
        return []

    def split_prefills(self, prefilling: list[Request], queue: WaitingQueue) -> tuple[list[Request], list[Request]]:
        """Prefills under way, in order: those that get their chunk before the queue is looked at, and those after."""
        return prefilling.copy(), []
