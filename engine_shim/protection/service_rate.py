"""How fast the engine has lately served: requests and prompt tokens per second, measured only while somebody waited.

An engine that nobody waits for is as slow as its clients; what counts is what it does when it is asked for all it has.
So time passes here only while the queue is not empty, and what ends meanwhile is divided by it. Older time counts less,
by half every `HALF_LIFE_S` seconds. Between two busy spells the last measurement is kept.

In steady state what leaves the queue equals what finishes, so that `requests_per_s` is also how fast the queue moves
(Little: a queue of n waits n ÷ rate).
"""

from __future__ import annotations

import math

from ..request import Request, Stage

HALF_LIFE_S = 10.0
_TIME_CONSTANT_S = HALF_LIFE_S / math.log(2)
KNOWN_FROM = 8  # completions before anything is said


class ServiceRate:
    """Told by the engine when the queue fills or empties and when requests finish. Times are clock seconds."""

    def __init__(self) -> None:
        self._since: float | None = None  # up to when busy time is booked; None while nobody waits
        self._busy_s = 0.0
        self._requests = 0.0
        self._prompt_tokens = 0.0
        self._prefill_s = 0.0
        self._counted = 0

    def queue(self, waiting: bool, now: float) -> None:
        """Whether somebody waits from now on."""
        if waiting == (self._since is not None):
            return
        self._pass_time(now)
        self._since = now if waiting else None

    def finished(self, request: Request, now: float) -> None:
        """A request has been served to its end."""
        if self._since is None:
            return
        self._pass_time(now)
        self._requests += 1.0
        self._prompt_tokens += request.prompt_tokens
        self._prefill_s += _prefill_seconds(request)
        self._counted += 1

    @property
    def known(self) -> bool:
        """Whether enough has been seen."""
        return self._counted >= KNOWN_FROM and self._busy_s > 0

    @property
    def requests_per_s(self) -> float:
        """Requests served per second of a busy engine; NaN if not known."""
        return self._requests / self._busy_s if self.known else math.nan

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens of the requests served per second of a busy engine; NaN if not known."""
        return self._prompt_tokens / self._busy_s if self.known else math.nan

    def prefill_seconds(self, prompt_tokens: int) -> float:
        """From admission to the first token, for a prompt of this length; 0 if not known. Long prompts take longer."""
        if not self.known:
            return 0.0
        mean_tokens = self._prompt_tokens / self._requests
        return self._prefill_s / self._requests * max(prompt_tokens / mean_tokens, 1.0)

    def _pass_time(self, now: float) -> None:
        if self._since is None:
            return
        kept = math.exp(-(now - self._since) / _TIME_CONSTANT_S)
        self._since = now
        self._busy_s = self._busy_s * kept + _TIME_CONSTANT_S * (1.0 - kept)
        self._requests *= kept
        self._prompt_tokens *= kept
        self._prefill_s *= kept


def _prefill_seconds(request: Request) -> float:
    """From the first admission to the first token."""
    began = next((start for stage, start, _ in request.stages if stage is Stage.PREFILL), request.first_token_at)
    return max(request.first_token_at - began, 0.0)
