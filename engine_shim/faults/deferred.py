"""What a request may have to wait for besides KV: its adapter, or the grammar of its answer.

Adapters are loaded one after the other into `slots`; one that a request in the engine uses stays. Grammars are compiled
on a pool of threads. A request that waits here holds no KV and blocks nobody: it is *deferred*, not queued.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from ..request import Request
from .clients import share_of
from .interval import Window


@dataclass(frozen=True)
class AdapterLoad(Window):
    """Each request wants one of `adapters`, of which `slots` are on the device; a load takes `load_s`."""

    adapters: int
    slots: int
    load_s: float


@dataclass(frozen=True)
class GrammarCompile(Window):
    """A `share` of the requests has a grammar that takes `compile_s` on one of `threads`."""

    compile_s: float
    share: float = 1.0
    threads: int = 1


class Gate(Protocol):
    """Says whether a request may join the queue."""

    def is_open(self, request: Request, now: float) -> bool:
        """Whether it may; asked again as long as it may not, and once more than that never."""
        ...

    def wakes_at(self, now: float) -> float:
        """When the answer may be another, if nothing else happens."""
        ...

    def left(self, request: Request) -> None:
        """A request has left the engine."""
        ...


class AdapterSlots:
    """Which adapters are on the device, least recently used first."""

    def __init__(self, fault: AdapterLoad) -> None:
        self._fault = fault
        self._loaded: OrderedDict[int, None] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._user_of: dict[Request, int] = {}
        self._loading: int | None = None
        self._ready_at = math.inf

    def is_open(self, request: Request, now: float) -> bool:
        """See Gate; begins to load what is missing."""
        if not self._fault.acts(now):
            return True
        self._settle(now)
        adapter = zlib.crc32(request.id.encode()) % self._fault.adapters
        if adapter in self._loaded:
            self._loaded.move_to_end(adapter)
            if request not in self._user_of:
                self._user_of[request] = adapter
                self._users[adapter] += 1
            return True
        if self._loading is None and self._make_room():
            self._loading, self._ready_at = adapter, now + self._fault.load_s
        return False

    def wakes_at(self, now: float) -> float:
        """See Gate."""
        return self._ready_at

    def left(self, request: Request) -> None:
        """See Gate."""
        adapter = self._user_of.pop(request, None)
        if adapter is not None:
            self._users[adapter] -= 1

    def _settle(self, now: float) -> None:
        if self._loading is not None and now >= self._ready_at:
            self._loaded[self._loading] = None
            self._loading, self._ready_at = None, math.inf

    def _make_room(self) -> bool:
        if len(self._loaded) < self._fault.slots:
            return True
        idle = next((adapter for adapter in self._loaded if not self._users[adapter]), None)
        if idle is None:
            return False
        del self._loaded[idle]
        return True


class GrammarThreads:
    """A pool of threads that compile, first come first served."""

    def __init__(self, fault: GrammarCompile) -> None:
        self._fault = fault
        self._free_at = [-math.inf] * fault.threads
        self._ready_at: dict[Request, float] = {}

    def is_open(self, request: Request, now: float) -> bool:
        """See Gate."""
        ready_at = self._ready_at.get(request)
        if ready_at is None:
            if not self._fault.acts(now) or share_of(request) >= self._fault.share:
                return True
            ready_at = max(now, heapq.heappop(self._free_at)) + self._fault.compile_s
            heapq.heappush(self._free_at, ready_at)
            self._ready_at[request] = ready_at
        return now >= ready_at

    def wakes_at(self, now: float) -> float:
        """See Gate."""
        return min((at for at in self._ready_at.values() if at > now), default=math.inf)

    def left(self, request: Request) -> None:
        """See Gate."""
        self._ready_at.pop(request, None)
