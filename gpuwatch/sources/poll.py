"""What a source is, and the wrapper that times, bounds and counts its polls. A failed poll is data, never an exception.

After a failure a source is asked again soon, then less often, but never later than `retry_s` (or its own pace): what
comes back is seen within two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

import msgspec

from ..model import Batch, Subject

log = logging.getLogger(__name__)

_ERROR_CHARS = 300


class Clock(Protocol):
    """Says what time it is."""

    def now(self) -> float:
        """Unix seconds."""
        ...


class Source(Protocol):
    """A part of the world that can be asked. Its world (client, paths, libraries) comes through its constructor."""

    @property
    def name(self) -> str:
        """Unique among the agent's sources: `page:shim`."""
        ...

    @property
    def role(self) -> str:
        """What is asked: engine, steps, spans, gpu, host, ownership, changes."""
        ...

    @property
    def subject(self) -> Subject:
        """Whom a failed poll is about."""
        ...

    @property
    def interval_s(self) -> float:
        """How long until it should be asked again; may change from poll to poll."""
        ...

    async def poll(self, now: float) -> Batch:
        """Ask once. May raise; the Poller turns that into a Batch."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and files."""
        ...


class PollCounts(msgspec.Struct):
    """What a Poller has seen since it started; `busy_s` is the time spent in polls."""

    polls: int = 0
    errors: int = 0
    dropped: int = 0
    busy_s: float = 0.0
    last_error: str = ""
    failing_since: float | None = None


class Poller:
    """Asks one source: each poll has a time limit, an error is a Batch, everything is counted, logged once a change.

    A source whose honest answers may take longer than the limit says so in `patience_s`.
    """

    def __init__(
        self, source: Source, timeout_s: float = 5.0, first_retry_s: float = 0.25, retry_s: float = 2.0
    ) -> None:
        self.source = source
        self.counts = PollCounts()
        self.due_at = 0.0
        self._timeout_s = timeout_s
        self._first_retry_s = first_retry_s
        self._retry_s = retry_s
        self._failed_in_a_row = 0

    async def poll(self, now: float) -> Batch:
        """Ask the source at `now` (unix seconds) and set `due_at`. Cancelling is the only exception that leaves it."""
        source = self.source
        started = time.perf_counter()
        try:
            async with asyncio.timeout(max(self._timeout_s, 1.5 * getattr(source, "patience_s", 0.0))):
                batch = await source.poll(now)
        except TimeoutError:
            batch = self._failed(now, f"no answer within {self._timeout_s:g} s")
        except Exception as error:  # whatever a source does, the agent lives
            batch = self._failed(now, f"{type(error).__name__}: {error}")
        took_s = time.perf_counter() - started
        self._count(batch, now, took_s)
        return batch if batch.took_s else msgspec.structs.replace(batch, took_s=took_s)

    async def aclose(self) -> None:
        """Close the source."""
        await self.source.aclose()

    def _failed(self, now: float, text: str) -> Batch:
        source = self.source
        return Batch(source.name, source.role, source.subject, now, error=text[:_ERROR_CHARS])

    def _count(self, batch: Batch, now: float, took_s: float) -> None:
        counts = self.counts
        counts.polls += 1
        counts.dropped += batch.dropped
        counts.busy_s += took_s
        if batch.error is None:
            self._failed_in_a_row = 0
            if counts.failing_since is not None:
                log.info("%s answers again after %.1f s", self.source.name, now - counts.failing_since)
                counts.failing_since = None
            self.due_at = now + self.source.interval_s
            return
        counts.errors += 1
        if counts.failing_since is None:
            counts.failing_since = now
            log.warning("%s: %s", self.source.name, batch.error)
        counts.last_error = batch.error
        backed_off_s = min(self._first_retry_s * 2**self._failed_in_a_row, self._retry_s)
        self._failed_in_a_row = min(self._failed_in_a_row + 1, 16)
        self.due_at = now + max(backed_off_s, min(self.source.interval_s, self._retry_s))
