"""KV memory: blocks that never come back, and a cache tier on the host that is slow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..step import StepPlan
from .interval import Window

if TYPE_CHECKING:
    from ..engine.engine import Engine


@dataclass(frozen=True)
class BlockLeak(Window):
    """`blocks_per_min` of the pool's blocks are lost, until the engine is restarted."""

    blocks_per_min: float


@dataclass(frozen=True)
class OffloadStall(Window):
    """Reused blocks come from the host, and computed ones go there, at `bytes_per_s`; the step waits for them."""

    bytes_per_s: float

    def stall_s(self, plan: StepPlan, kv_bytes_per_token: int) -> float:
        """Seconds that a step waits for its blocks."""
        loaded = sum(request.cached_tokens for request in plan.admitted if not request.preemptions)
        stored = sum(chunk for _, chunk in plan.prefill)
        return (loaded + stored) * kv_bytes_per_token / self.bytes_per_s


class LeakedBlocks:
    """Takes blocks out of an engine's pool as time passes. A new life of the engine has a whole pool again."""

    def __init__(self, fault: BlockLeak) -> None:
        self.fault = fault
        self._epoch = 0
        self._since = fault.at
        self.lost_blocks = 0

    def next_change(self, now: float) -> float:
        """When the next block is lost."""
        if now >= self.fault.until:
            return math.inf
        return max(self._since + (self.lost_blocks + 1) * 60.0 / self.fault.blocks_per_min, self.fault.at)

    def act(self, engine: Engine, now: float) -> None:
        """Lose what is due by `now`; blocks in use are not taken from anybody."""
        if engine.epoch != self._epoch:
            self._epoch, self.lost_blocks, self._since = engine.epoch, 0, max(self.fault.at, engine.started_at)
        if not self.fault.acts(now):
            return
        due = math.floor((now - self._since) * self.fault.blocks_per_min / 60.0 + 1e-9) - self.lost_blocks
        free = engine.pool.free_blocks - engine.scheduler.admission.reserved_blocks
        if due > 0:
            engine.pool.take(max(min(due, free), 0))
            self.lost_blocks += due
