"""The interval in which a fault acts."""

from __future__ import annotations

import math
from dataclasses import dataclass

FOREVER = math.inf


@dataclass(frozen=True)
class Window:
    """A fault of `kind` that acts from `at` to `until`, clock times."""

    at: float
    until: float
    kind: str

    def acts(self, now: float) -> bool:
        """Whether it acts at `now`."""
        return self.at <= now < self.until
