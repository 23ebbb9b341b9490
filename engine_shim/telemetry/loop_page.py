"""How late the front end's event loop is, on the engine's page: an alarm ten times a second, and by how much it rings late.

A loop that tokenizes, serialises and sends for everybody is late by the longest piece of work that it did in one go; all
streams stall that long at once. An ASGI application around the server's own, because it must live on that loop.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from .exposition import Family, Histogram, histogram

EVERY_S = 0.1
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Keeps the lags, in seconds. `around` wraps an application whose loop is to be watched."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS)
        self._watching: asyncio.Task[None] | None = None

    def families(self) -> list[Family]:
        """What the page shows."""
        return [
            histogram("shim:event_loop_lag_seconds", "How late an alarm on the front end's loop rings.", self.seconds)
        ]

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application; watching begins with its lifespan, and ends with the loop."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan" and self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            await app(scope, receive, send)

        return watched

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.seconds.observe(max(loop.time() - due, 0.0))
