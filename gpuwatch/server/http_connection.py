"""One HTTP connection of the agent's servers: uvicorn's, that waits for a request only so long, and gives way.

uvicorn lets a client that sends half a head stay for ever, and counts it: a hundred of those, from anybody who reaches the
port, and probes, Prometheus and the engines' spans are refused. Here a head is complete within HEAD_S of the connection, or
of the answer before; and where all places are taken, the connection that has waited longest for its request is cut.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 15.0
MOST_CONNECTIONS = 128


class Connection(H11Protocol):
    """One client. `waits_since` is the loop's time; None while a request is being answered."""

    waits_since: float | None = None
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, then begin to wait."""
        if len(self.connections) >= MOST_CONNECTIONS - 1:  # uvicorn refuses the last one
            self._make_room()
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """A complete head begins an answer."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request; it may be there already."""
        self._wait()
        super().on_response_complete()

    def cut(self) -> None:
        """End the connection at once, and free its place."""
        self._stop_waiting()
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        self._stop_waiting()
        self.waits_since = self.loop.time()
        self._late = self.loop.call_later(HEAD_S, self.cut)

    def _stop_waiting(self) -> None:
        self.waits_since = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _make_room(self) -> None:
        waiting: list[Any] = [c for c in self.connections if getattr(c, "waits_since", None) is not None]
        if waiting:
            min(waiting, key=lambda connection: connection.waits_since).cut()
