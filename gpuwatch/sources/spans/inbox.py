"""The mailbox between the OTLP receivers and the agent: exports are put there, the agent polls them once a tick."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable

from ...model import Batch, Spans, Subject
from .decoder import SOURCE, Decoded
from .trees import MOST_SPANS, Root, Slice, SpanTrees


class SpanInbox:
    """Bounded and thread-safe: `put` in a receiver, `poll` in the agent's loop. `reasons` are counts since the start."""

    role = "spans"
    name = "spans"

    def __init__(self, subject: Subject, most_rows: int = 20_000, interval_s: float = 0.5) -> None:
        self.subject = subject
        self.interval_s = interval_s
        self.reasons: Counter[str] = Counter()
        self._most_rows = most_rows
        self._lock = threading.Lock()
        self._trees = SpanTrees()
        self._spans: deque[Spans] = deque()
        self._waiting: list[Root | Slice] = []
        self._told: list[Root] = []
        self._rows = 0
        self._dropped = 0

    def put(self, decoded: Decoded) -> bool:
        """Take an export. False where the mailbox is full: answer that it should be sent again, nothing is kept."""
        rows = decoded.rows
        with self._lock:
            if rows and (self._rows + rows > self._most_rows or self._trees.held > MOST_SPANS):
                self._dropped += rows
                self.reasons["inbox_full"] += rows
                return False
            self._dropped += decoded.dropped
            self.reasons.update(decoded.reasons)
            self._spans.extend(decoded.spans)
            self._waiting += decoded.waiting
            self._told += decoded.told
            self._rows += rows
            return True

    async def poll(self, now: float) -> Batch:
        """Everything that has come since the last poll, and every tree that has become quiet."""
        return self.take(now)

    def take(self, now: float) -> Batch:
        """As `poll`, for those who do not wait."""
        with self._lock:
            spans, waiting, told, dropped = tuple(self._spans), self._waiting, self._told, self._dropped
            self._spans.clear()
            self._waiting, self._told = [], []
            self._rows = self._dropped = 0
        before = sum(self._trees.counts.values())
        spans += tuple(complete(self._trees, waiting, told, now))
        lost = sum(self._trees.counts.values()) - before
        if lost:
            self.reasons["late"], self.reasons["tree_too_large"] = self._trees.counts["late"], self._trees.counts["cut"]
        return Batch(SOURCE, self.role, self.subject, now, spans=spans, dropped=dropped + lost)

    async def aclose(self) -> None:
        """Nothing is open."""


def complete(trees: SpanTrees, waiting: Iterable[Root | Slice], told: Iterable[Root], now: float) -> list[Spans]:
    """Give the trees what came by `now`; take what is complete."""
    trees.remember(told, now)
    trees.add(waiting, now)
    return trees.take(now)
