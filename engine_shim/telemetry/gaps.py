"""Token times from step ends: the first token of each request and the gaps between tokens, without a call per token.

Every decoding request gets a token at a step's end, so one observation with a weight covers the whole batch: requests
that decoded in the previous decode step share its gap, those whose first token came in between have their own. A
preempted request's gap spans its wait and its recomputation; it is measured when it decodes again. Seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from ..request import Request, Stage
from ..step import STEP_FIELDS

_ENDED = STEP_FIELDS.index("ended_at")
_DECODE = STEP_FIELDS.index("decode_tokens")


class TokenTimes:
    """Calls `on_first(request, ttft_s)` once a request and `on_gap(gap_s, count)` for inter-token gaps."""

    def __init__(self, on_first: Callable[[Request, float], None], on_gap: Callable[[float, int], None]) -> None:
        self._on_first = on_first
        self._on_gap = on_gap
        self._begun: set[Request] = set()  # those whose first token has been seen
        self._torn: dict[Request, float] = {}  # preempted while decoding: their last token's time
        self._joined: list[float] = []  # when requests got a token outside a decode step since the last decode step
        self._last_decode_at = 0.0

    def step_ended(self, record: list[float]) -> None:
        """Book the gaps of a step's decode tokens."""
        decoded = int(record[_DECODE])
        if decoded <= 0:
            return
        ended_at = record[_ENDED]
        joined = self._joined
        if joined:
            early = [at for at in joined if at < ended_at]
            self._joined = [at for at in joined if at >= ended_at]
            for at in early[:decoded]:
                self._on_gap(ended_at - at, 1)
            decoded -= min(len(early), decoded)
        if decoded > 0 and self._last_decode_at > 0:
            self._on_gap(ended_at - self._last_decode_at, decoded)
        self._last_decode_at = ended_at

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Follow first tokens, preemptions and resumptions."""
        if stage == Stage.DECODE:
            self._joined.append(now)
            if request not in self._begun:
                self._begun.add(request)
                self._on_first(request, now - request.arrived_at)
            elif request in self._torn:
                self._on_gap(now - self._torn.pop(request), 1)
        elif stage == Stage.REQUEUE and request in self._begun:
            self._torn[request] = request.last_token_at

    def finished(self, request: Request) -> None:
        """Book the first token of a request that ended with it, and forget the request."""
        if request in self._begun:
            self._begun.discard(request)
            self._torn.pop(request, None)
        elif request.first_token_at > 0:
            self._on_first(request, request.first_token_at - request.arrived_at)

    def clear(self) -> None:
        """A restart: requests in flight are gone."""
        self._begun.clear()
        self._torn.clear()
        self._joined.clear()
        self._last_decode_at = 0.0
