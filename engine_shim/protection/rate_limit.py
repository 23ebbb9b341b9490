"""Rate limiting, early: a token bucket for each API key, or tenant where there is no key.

A bucket holds `burst` requests when full and gains `per_s` of them each second; a request takes one, and where there is
none it is refused. How busy the engine is does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..request import Request
from .refusal import RATE_LIMITED, Refusal, retry_within

MAX_BUCKETS = 10_000  # beyond it the bucket unused for longest is forgotten: its sender starts with a full one


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class RateLimit:
    """Buckets by sender. Bounded: who sends with ever new names gains no more than one burst for each."""

    def __init__(self, per_s: float, burst: int, max_buckets: int = MAX_BUCKETS) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def refusal(self, request: Request) -> Refusal | None:
        """None, and one request less for its sender; else when there would be one again."""
        sender, now = request.client or request.tenant, request.arrived_at
        bucket = self._buckets.setdefault(sender, _Bucket(self._burst, now))
        self._buckets.move_to_end(sender)
        if len(self._buckets) > self._max_buckets:
            self._buckets.popitem(last=False)
        bucket.level = min(bucket.level + max(now - bucket.at, 0.0) * self._per_s, self._burst)
        bucket.at = max(now, bucket.at)
        # A bucket that was refilled in many small parts must not miss a whole one for a rounding error.
        if bucket.level >= 1.0 - 1e-9:
            bucket.level -= 1.0
            return None
        wait_s = (1.0 - bucket.level) / self._per_s
        return Refusal(RATE_LIMITED, f"more than {self._per_s:g} requests per second", retry_within(wait_s))
