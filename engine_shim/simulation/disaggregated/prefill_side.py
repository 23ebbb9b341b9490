"""The prefill engine's scheduler: as any other, but a prompt's KV stays in its blocks until it has been fetched."""

from __future__ import annotations

from ...engine.counters import Counters
from ...engine.scheduler import Scheduler
from ...kv.blocks import OutOfBlocksError
from ...kv.pool import KvPool
from ...request import Request
from ...settings.engine import EngineSettings


class PrefillScheduler(Scheduler):
    """Requests here ask for one token. Kept blocks count as used; nobody can preempt them."""

    def __init__(self, settings: EngineSettings, pool: KvPool, counters: Counters) -> None:
        super().__init__(settings, pool, counters)
        self._kept: dict[Request, tuple[list[int], int]] = {}  # blocks, and the tokens in them
        self._computed: list[Request] = []

    @property
    def kv_transfers(self) -> int:
        """Requests whose KV is kept for a decode engine."""
        return len(self._kept)

    def finish(self, request: Request, reason: str, now: float) -> None:
        """As usual, but what has been computed to its end keeps its blocks."""
        if reason not in ("stop", "length"):
            super().finish(request, reason, now)
            return
        self._publish(request)
        self.admission.withdraw(request)
        blocks, tokens = request.blocks, request.computed_tokens
        self._kept[request] = (blocks, tokens)
        self._computed.append(request)
        request.blocks = []
        super().finish(request, reason, now)
        self.written_tokens += tokens

    def take_computed(self) -> list[Request]:
        """Requests whose prompt has been computed since the last call."""
        computed, self._computed = self._computed, []
        return computed

    def fetched(self, request: Request) -> None:
        """The request's KV is where it is needed, or nobody needs it any more."""
        if request not in self._kept:
            raise OutOfBlocksError(f"no KV is kept for request {request.id}")
        blocks, tokens = self._kept.pop(request)
        self.pool.release(blocks)
        self.written_tokens -= tokens
