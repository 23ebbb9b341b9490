"""`max_long_prefills`: at most so many prompts of `long_prefill_tokens` or more are computed at the same time.

A long prompt that is held back waits in its place, and shorter ones behind it go first; as soon as another long one has
been computed, it is its turn. 0 means no limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..request import Request


class LongPrefills:
    """Whether one more may begin."""

    def __init__(self, most: int, long_tokens: int) -> None:
        self.limited = most > 0
        self._most = most
        self._long_tokens = long_tokens

    def holds_back(self, request: Request, prefilling: Iterable[Request]) -> bool:
        """Whether `request` is a long one too many beside those that are `prefilling`."""
        if not self.limited or request.total_tokens < self._long_tokens:
            return False
        return sum(other.total_tokens >= self._long_tokens for other in prefilling) >= self._most
