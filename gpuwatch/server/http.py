"""uvicorn inside the agent's own event loop: sockets that we bind, signals that stay ours, no timer of its own.

uvicorn's main loop wakes ten times a second to renew a Date header and to count requests; the agent needs neither, so
only its start and its shutdown are used.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ..config import ConfigError, host_port

if TYPE_CHECKING:
    from starlette.applications import Starlette

BACKLOG = 128
CLOSE_S = 1


def bind(listen: str, key: str) -> socket.socket:
    """A listening socket. Raises ConfigError naming the key where the address cannot be had."""
    host, port = host_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"{key}: cannot listen on {listen}: {error.strerror or error}") from error


class HttpServer:
    """One app on one socket. `start` returns when it answers; `stop` lets answers under way finish for a second."""

    def __init__(self, app: Starlette, sock: socket.socket) -> None:
        import uvicorn

        from .http_connection import HEAD_S, MOST_CONNECTIONS, Connection

        self.port: int = sock.getsockname()[1]
        self._sock = sock
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False,
                http=Connection, ws="none", limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=CLOSE_S,
                timeout_keep_alive=int(HEAD_S),
            )
        )  # fmt: skip

    async def start(self) -> None:
        """Begin to answer."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._sock])

    async def stop(self) -> None:
        """Stop answering and close the socket."""
        await self._server.shutdown(sockets=[self._sock])
