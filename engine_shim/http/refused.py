"""Refusals as HTTP answers: OpenAI error objects with a status that says whether trying again makes sense.

429 with Retry-After where protection refused, whether early (`rate_limit_exceeded`) or late (the reason's own word); 400
for what can never be served; 503 for the queue's fixed limit, of which nobody knows when it will have room.
"""

from __future__ import annotations

from ..protection.refusal import DEADLINE, OTHER, RATE_LIMITED, TOO_LONG, Refusal
from .protocol import ApiError

_CODES = {TOO_LONG: "context_length_exceeded", OTHER: "rejected", RATE_LIMITED: "rate_limit_exceeded"}


def api_error(refusal: Refusal) -> ApiError:
    """The answer to a request that was turned away."""
    code = _CODES.get(refusal.reason, refusal.reason)
    message = f"The engine refused: {refusal.message}."
    if refusal.retry_after_s is not None:
        return ApiError(429, message, code=code, retry_after_s=refusal.retry_after_s)
    return ApiError(400 if refusal.reason in (TOO_LONG, OTHER) else 503, message, code=code)


def late_refusal(refusal: Refusal) -> bool:
    """Whether the engine was too busy: then a degraded answer is better than none."""
    return refusal.reason not in (TOO_LONG, OTHER, RATE_LIMITED)


def missed_deadline() -> ApiError:
    """The answer to a request that waited in the queue until its deadline."""
    return ApiError(429, "The request waited until its deadline.", code=DEADLINE, retry_after_s=1.0)
