"""Spans forwarded, unchanged, to the user's own collector: the agent is a stop on the way, never the end of it.

Bodies wait in a bounded queue, are sent in order, and are dropped and counted when the collector stays away: telemetry
of the user's must not fill the sidecar's memory. A body keeps its bytes and its compression, whichever protocol brought
it and whichever takes it on; JSON has no form in gRPC and is rejected there.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from .change_log import ChangeLog
from .delivery import Reject, Retry
from .http_post import Poster

if TYPE_CHECKING:
    from ..wire.grpc.client import GrpcCaller

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 1024 * 1024
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
PROTOBUF = "application/x-protobuf"


class _Way(Protocol):
    """How a body gets to the collector. Raises Retry or Reject."""

    async def send(self, body: bytes, content_type: str, encoding: str) -> None: ...
    async def aclose(self) -> None: ...


class Forwarder:
    """`counts`: sent, retries, rejected, dropped (exports, not spans)."""

    def __init__(self, url: str, timeout_s: float, jitter: Callable[[], float] = random.random) -> None:
        self.counts: Counter[str] = Counter()
        self._way = _way(url, timeout_s)
        self._jitter = jitter
        self._queue: deque[tuple[bytes, str, str]] = deque()
        self._bytes = 0
        self._failures = 0
        self._next_try_at = 0.0
        self._busy = False
        self._change = ChangeLog(log, "forwarding spans")

    @property
    def waiting(self) -> int:
        """Exports that were not delivered yet."""
        return len(self._queue)

    def offer(self, body: bytes, content_type: str, encoding: str) -> None:
        """Queue one export as it came; the oldest go when there are too many bytes."""
        self._queue.append((body, content_type or PROTOBUF, "" if encoding.lower() == "identity" else encoding))
        self._bytes += len(body)
        while self._bytes > MOST_BYTES:
            self._bytes -= len(self._queue.popleft()[0])
            self.counts["dropped"] += 1

    def due(self, now: float) -> bool:
        """Whether `pump` would do anything."""
        return bool(self._queue) and not self._busy and now >= self._next_try_at

    async def pump(self, now: float) -> None:
        """Send what waits until the queue is empty or the collector does not answer."""
        if not self.due(now):
            return
        self._busy = True
        try:
            while self._queue:
                export = self._queue[0]
                if not await self._try(now, *export):
                    return
                if self._queue and self._queue[0] is export:  # it may have been dropped while it was on its way
                    self._queue.popleft()
                    self._bytes -= len(export[0])
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Close the connection."""
        await self._way.aclose()

    async def _try(self, now: float, body: bytes, content_type: str, encoding: str) -> bool:
        """Whether the export is done with, delivered or refused."""
        try:
            await self._way.send(body, content_type, encoding)
        except Retry as error:
            self.counts["retries"] += 1
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._failures)
            self._failures = min(self._failures + 1, 16)
            self._next_try_at = now + wait_s * (0.5 + 0.5 * self._jitter())
            self._change.say(str(error))
            return False
        except Reject as error:
            self.counts["rejected"] += 1
            self._change.say(str(error))
        else:
            self.counts["sent"] += 1
            self._change.say("")
        self._failures, self._next_try_at = 0, 0.0
        return True


class _Http:
    """OTLP over HTTP: the body is the body."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._poster = Poster(url, timeout_s)

    async def send(self, body: bytes, content_type: str, encoding: str) -> None:
        headers = {"Content-Type": content_type} | ({"Content-Encoding": encoding} if encoding else {})
        await self._poster.post(body, headers)

    async def aclose(self) -> None:
        await self._poster.aclose()


class _Grpc:
    """OTLP over gRPC: the body is the message."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 4317
        self._tls, self._timeout_s = parts.scheme == "grpcs", timeout_s
        self._caller: GrpcCaller | None = None

    async def send(self, body: bytes, content_type: str, encoding: str) -> None:
        from ..wire.grpc import EXPORT_TRACES
        from ..wire.grpc.client import GrpcCaller
        from ..wire.grpc.message import RETRYABLE, GrpcError

        if "json" in content_type.lower():
            raise Reject("JSON cannot be forwarded over gRPC: forward to an http:// address")
        if self._caller is None:
            self._caller = GrpcCaller(self._host, self._port, EXPORT_TRACES, tls=self._tls, timeout_s=self._timeout_s)
        try:
            await self._caller.call(body, encoding)
        except GrpcError as error:
            said = f"{self._caller.target}: {error}"
            raise (Retry if error.status in RETRYABLE else Reject)(said) from error

    async def aclose(self) -> None:
        if self._caller is not None:
            await self._caller.aclose()


def _way(url: str, timeout_s: float) -> _Way:
    return _Grpc(url, timeout_s) if urlsplit(url).scheme in ("grpc", "grpcs") else _Http(url, timeout_s)
