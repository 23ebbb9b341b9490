"""Token times from step ends: the first token of each request and the gaps between tokens, without a call per token.

Every decoding request gets a token at a step's end, so one observation with a weight covers the whole batch: requests
that decoded in the previous decode step share its gap, those whose first token came in between have their own. A
preempted request's gap spans its wait and its recomputation; it is measured when it decodes again. Seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..request import Request, Stage
from .exposition import Histogram


class TokenTimes:
    """Books inter-token gaps in `gaps`; calls `on_first(request, at)` once a request, with its first token's time."""

    def __init__(self, gaps: Histogram, on_first: Callable[[Request, float], None]) -> None:
        self._gaps = gaps
        self._on_first = on_first
        self._begun: set[Request] = set()  # those whose first token has been seen
        self._torn: dict[Request, float] = {}  # preempted while decoding: their last token's time
        self._joined: list[float] = []  # when requests got a token by prefill, not yet followed by a decode step
        self._last_decode_at = 0.0

    def steps(self, ended_at: np.ndarray, decode_tokens: np.ndarray) -> None:
        """Book the gaps of completed steps, oldest first."""
        decoding = decode_tokens > 0
        ended, decoded = ended_at[decoding], decode_tokens[decoding]
        if not len(ended):
            return
        before = np.concatenate(([self._last_decode_at], ended[:-1]))
        if self._joined:
            joined = np.array(self._joined)
            follows = np.searchsorted(ended, joined, side="right")  # the first decode step that ended later
            known = follows < len(ended)
            self._joined = joined[~known].tolist()
            follows, joined = follows[known], joined[known]
            self._gaps.observe_many(ended[follows] - joined)
            decoded = np.maximum(decoded - np.bincount(follows, minlength=len(ended)), 0)
        shared = (decoded > 0) & (before > 0)
        self._gaps.observe_many(ended[shared] - before[shared], decoded[shared])
        self._last_decode_at = float(ended[-1])

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Follow first tokens, preemptions and resumptions."""
        if stage == Stage.DECODE:
            self._joined.append(now)
            if request not in self._begun:
                self._begun.add(request)
                self._on_first(request, now)
            elif request in self._torn:
                self._gaps.observe(now - self._torn.pop(request))
        elif stage == Stage.REQUEUE and request in self._begun:
            self._torn[request] = request.last_token_at

    def finished(self, request: Request) -> None:
        """Book the first token of a request that ended with it, and forget the request."""
        if request in self._begun:
            self._begun.discard(request)
            self._torn.pop(request, None)
            if request.output_tokens <= 1 and request.last_token_at in self._joined:
                self._joined.remove(request.last_token_at)  # no decode step follows
        elif request.first_token_at > 0:
            self._on_first(request, request.first_token_at)
