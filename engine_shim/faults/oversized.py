"""A request that no pool can hold, let in by a front end that does not look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..request import Request

if TYPE_CHECKING:
    from ..engine.engine import Engine


@dataclass(frozen=True)
class OversizedRequest:
    """One request whose prompt is `pool_ratio` of the KV pool, at the clock time `at`."""

    at: float
    pool_ratio: float
    kind: str = "oversized_request"

    @property
    def request_id(self) -> str:
        """Its request's."""
        return f"oversized-{self.at:.3f}"

    def let_in(self, engine: Engine, now: float) -> None:
        """Hand it to the engine past the check of sizes."""
        tokens = max(int(engine.pool_blocks * engine.pool.block_tokens * self.pool_ratio), 1)
        engine.let_in(Request(self.request_id, tokens, 16, now, 16))
