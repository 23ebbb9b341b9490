"""Why a request is turned away, in a form that metrics, clients and logs share."""

from __future__ import annotations

from dataclasses import dataclass

# The reasons that every engine has: it can never be served; the queue's fixed limit; anything else.
TOO_LONG, QUEUE_FULL, OTHER = "too_long", "queue_full", "other"
ALWAYS = (TOO_LONG, QUEUE_FULL, OTHER)
# Those of protection.
RATE_LIMITED, CONCURRENCY, QUEUED_TOKENS, DEADLINE = "rate_limited", "concurrency", "queued_tokens", "deadline"

LONGEST_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is one of the words above. `retry_after_s` is None where nobody can say when it would be different."""

    reason: str
    message: str  # for the client; a clause without a full stop
    retry_after_s: float | None = None


def retry_within(seconds: float) -> float:
    """A client's pause, between one second and a minute: an estimate is no reason to stay away for long."""
    return min(max(seconds, 1.0), LONGEST_RETRY_S)
