"""Addresses that were asked for, checked before anything is loaded: where to listen, and where to send."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def check_address(host: str, port: int) -> None:
    """ValueError if nothing can listen there, with the system's reason; the port is free again afterwards."""
    reason = ""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ValueError(f"host {host!r}: {error.strerror}") from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            try:
                probe.bind(address)
            except OSError as error:
                reason = error.strerror
                continue
            return
    raise ValueError(f"cannot listen on {host}:{port}: {reason}; choose another host or port (0: any free one)")


def check_url(key: str, url: str) -> None:
    """ValueError if `url` is not an HTTP address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{key}: {url!r} is not an address such as http://127.0.0.1:4318")
