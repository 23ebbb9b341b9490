"""Clients, and what stands between them and the engine.

A stalled client does not read: once its buffer is full its request is not scheduled any more, and keeps its KV. A proxy
that flushes in lumps leaves the engine alone and makes gaps on the client's side. A lost abort leaves a zombie: the
client has gone and the request decodes on.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ..request import Request
from .interval import Window


def share_of(request: Request) -> float:
    """Where a request falls between 0 and 1, the same in each run: a fault meets those below its share."""
    return (zlib.crc32(request.id.encode()) & 0xFFFFFF) / float(1 << 24)


@dataclass(frozen=True)
class StalledClient(Window):
    """The clients of a `share` of the requests do not read; what they have not read is at most `buffer_tokens`."""

    share: float = 0.3
    buffer_tokens: int = 32

    def holds(self, request: Request) -> bool:
        """Whether this request may not go on."""
        return request.output_tokens >= self.buffer_tokens and share_of(request) < self.share


@dataclass(frozen=True)
class LumpyProxy(Window):
    """What the engine sends is passed on every `every_s` only."""

    every_s: float


@dataclass(frozen=True)
class LostAbort(Window):
    """The engine does not hear of clients that have gone."""


MAX_LUMPS = 64  # spans of one request


def lumps(request: Request, every_s: float) -> list[tuple[float, float]]:
    """The client's waits from one lump to the next: (start, end), at most MAX_LUMPS."""
    if not request.first_token_at:
        return []
    waits = []
    before = at = request.first_token_at
    while at < request.last_token_at and len(waits) < MAX_LUMPS:
        at = before + every_s
        waits.append((before, at))
        before = at
    return waits
