"""Spans forwarded, unchanged, to the user's own collector: the agent is a stop on the way, never the end of it.

Bodies wait in a bounded queue, are sent in order, and are dropped and counted when the collector stays away: telemetry
of the user's must not fill the sidecar's memory.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

from .logs import ChangeLog
from .sinks.delivery import Reject, Retry
from .sinks.http_post import Poster

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 1024 * 1024
RETRY_S = 5.0


class Forwarder:
    """`counts`: sent, rejected, dropped (exports, not spans)."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._poster = Poster(url, timeout_s)
        self._queue: deque[tuple[bytes, dict[str, str]]] = deque()
        self._bytes = 0
        self._next_try_at = 0.0
        self._busy = False
        self._change = ChangeLog(log, "forwarding spans")

    def offer(self, body: bytes, content_type: str, encoding: str) -> None:
        """Queue one export as it came; the oldest go when there are too many bytes."""
        headers = {"Content-Type": content_type or "application/x-protobuf"}
        if encoding:
            headers["Content-Encoding"] = encoding
        self._queue.append((body, headers))
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
                body, headers = self._queue[0]
                if not await self._try(now, body, headers):
                    return
                if self._queue and self._queue[0][0] is body:
                    self._queue.popleft()
                    self._bytes -= len(body)
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Close the connection."""
        await self._poster.aclose()

    async def _try(self, now: float, body: bytes, headers: dict[str, str]) -> bool:
        try:
            await self._poster.post(body, headers)
        except Retry as error:
            self._next_try_at = now + RETRY_S
            self._change.say(str(error))
            return False
        except Reject as error:
            self.counts["rejected"] += 1
            self._change.say(str(error))
        else:
            self.counts["sent"] += 1
            self._change.say("")
        return True
