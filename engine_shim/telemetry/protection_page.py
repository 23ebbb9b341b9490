"""What overload protection goes by, on the engine's page: the measured rate, the limits that follow from it, the wait.

Series appear once they are known, and only for what is switched on. Refusals themselves are counted by reason in
`shim:requests_rejected_total`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..protection.protection import Protection, Unprotected
from .exposition import Family, single


class KeptAnswers(Protocol):
    """A response cache, as far as the page shows it: how many answers it keeps, and how many it has given."""

    given: int

    def __len__(self) -> int: ...


Current = Callable[[], Unprotected]  # of the engine's present life

_ROWS: tuple[tuple[str, str, Callable[[Protection], float | None]], ...] = (
    (
        "service_rate_requests_per_second",
        "Requests served per second while some waited.",
        lambda p: p.backlog.rate.requests_per_s if p.backlog.rate.known else None,
    ),
    (
        "service_rate_prompt_tokens_per_second",
        "Prompt tokens of the requests served per second while some waited.",
        lambda p: p.backlog.rate.prompt_tokens_per_s if p.backlog.rate.known else None,
    ),
    ("expected_wait_seconds", "How long one more request would wait.", lambda p: p.backlog.expected_wait_s()),
    (
        "queue_limit_requests",
        "Requests that may wait at the measured rate.",
        lambda p: None if p.queue_length is None else p.queue_length.limit(p.backlog),
    ),
    (
        "queue_limit_prompt_tokens",
        "Prompt tokens that may wait at the measured rate.",
        lambda p: None if p.queued_tokens is None else p.queued_tokens.limit_tokens(p.backlog),
    ),
    ("queued_prompt_tokens", "Prompt tokens of the requests that wait.", lambda p: p.backlog.waiting_tokens),
)


def protection_families(current: Current) -> list[Family]:
    """One family for each figure."""
    return [single(f"shim:{name}", "gauge", text, partial(_figure, current, read)) for name, text, read in _ROWS]


def response_cache_families(cache: KeptAnswers) -> list[Family]:
    """How much is kept, and how many of the refused requests were given an answer all the same."""
    return [
        single("shim:response_cache_entries", "gauge", "Answers kept for degraded mode.", lambda: len(cache)),
        single(
            "shim:degraded_answers_total", "counter",
            "Refused requests that were answered from the response cache.", lambda: cache.given,
        ),
    ]  # fmt: skip


def _figure(current: Current, read: Callable[[Protection], float | None]) -> float | None:
    protection = current()
    return read(protection) if isinstance(protection, Protection) else None
