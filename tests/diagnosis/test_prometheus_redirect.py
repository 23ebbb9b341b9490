"""A Prometheus that sends its visitors elsewhere: the token goes where the user said, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwatch.config import Config
from gpuwatch.diagnose import Asked, MaterialError, ask_prometheus


class Server(ThreadingHTTPServer):
    """Answers everything with a redirect to `target`, or with 200 and nothing; remembers the headers that came."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.tenants: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        self.server.tenants.append(self.headers.get("X-Scope-OrgID"))
        self.send_response(307 if self.server.target else 200)
        if self.server.target:
            self.send_header("Location", self.server.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One that redirects to the other."""
    with Server() as elsewhere, Server(elsewhere.url) as first:
        threads = [threading.Thread(target=s.serve_forever, args=(0.01,)) for s in (elsewhere, first)]
        for thread in threads:
            thread.start()
        yield first, elsewhere
        for server in (elsewhere, first):
            server.shutdown()
        for thread in threads:
            thread.join()


def test_a_redirect_is_named_and_not_followed(servers: tuple[Server, Server], tmp_path) -> None:
    first, elsewhere = servers
    secret = tmp_path / "auth"
    secret.write_text("X-Scope-OrgID: tenant-7\n")
    with pytest.raises(MaterialError, match=f"leads to {elsewhere.url}"):
        ask_prometheus(Asked(first.url, "-10m", "now", "", None, str(secret)), Config(), 1e9)
    assert first.tenants
    assert elsewhere.tenants == []
