"""Clients that give up: some hang up after a while, some try again, and may make a storm of it.

A client that retries waits `timeout_s` for its first token, hangs up, and sends the same request again after
`backoff_s`, twice that after the next failure, and so on, `attempts` times in all; a refusal counts as a failure.
Times are clock seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from ..request import Request


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and when a client sends a request that got no first token in time."""

    timeout_s: float
    attempts: int
    backoff_s: float


class Impatience:
    """Who gives up when, and what is sent again."""

    def __init__(self) -> None:
        self._leaves: list[tuple[float, int, Request, bool]] = []  # a heap: when, a tie-break, who, for a retry
        self._again: list[tuple[float, int, Callable[[float], Request]]] = []
        self._order = 0
        self._waiting: dict[Request, tuple[Retry, int, Callable[[float], Request]]] = {}
        self.retries = 0  # requests that were sent again

    def watch(
        self, request: Request, abort_after_s: float, retry: Retry | None, attempt: int,
        again: Callable[[float], Request],
    ) -> None:  # fmt: skip
        """A request has been sent, for the time number `attempt` from 1; `again(at)` makes the next one."""
        if abort_after_s < math.inf:
            self._push(request.arrived_at + abort_after_s, request, retries=False)
        if retry is not None:
            self._waiting[request] = (retry, attempt, again)
            self._push(request.arrived_at + retry.timeout_s, request, retries=True)

    def finished(self, request: Request, now: float) -> None:
        """A request has left the engine: a refusal is tried again."""
        kept = self._waiting.pop(request, None)
        if kept is not None and request.finish_reason in ("rejected", "error"):
            self._try_again(kept, now)

    def next_leave(self) -> float:
        """When somebody gives up next."""
        return self._leaves[0][0] if self._leaves else math.inf

    def leaving(self, now: float) -> list[str]:
        """Ids of the requests whose clients have gone by `now`."""
        gone = []
        while self._leaves and self._leaves[0][0] <= now:
            at, _, request, retries = heappop(self._leaves)
            if request.finish_reason or (retries and request.first_token_at):
                self._waiting.pop(request, None)
                continue
            kept = self._waiting.pop(request, None)
            if retries and kept is not None:
                self._try_again(kept, at)
            gone.append(request.id)
        return gone

    def next_again(self) -> float:
        """When something is sent again next."""
        return self._again[0][0] if self._again else math.inf

    def take_again(self) -> Request:
        """That request. IndexError if there is none."""
        at, _, again = heappop(self._again)
        self.retries += 1
        return again(at)

    def _try_again(self, kept: tuple[Retry, int, Callable[[float], Request]], now: float) -> None:
        retry, attempt, again = kept
        if attempt < retry.attempts:
            self._order += 1
            heappush(self._again, (now + retry.backoff_s * 2 ** (attempt - 1), self._order, again))

    def _push(self, at: float, request: Request, *, retries: bool) -> None:
        self._order += 1
        heappush(self._leaves, (at, self._order, request, retries))
