"""Having an engine profile itself, against real HTTP servers that can and cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwatch.profiles.engine import EngineProfileError, profile_engine


class Engine(ThreadingHTTPServer):
    """Answers POST with `status`; remembers what was asked."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Engine

    def do_POST(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A server in a thread."""
    with Engine(request.param) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("engine", [200], indirect=True)
def test_it_is_started_and_stopped(engine: Engine) -> None:
    said = profile_engine(engine.url + "/metrics", 0.01)
    assert engine.asked == ["/start_profile", "/stop_profile"]
    assert "gpuwatch profile TRACE" in said


@pytest.mark.parametrize("engine", [404], indirect=True)
def test_an_engine_without_a_profiler_says_how_to_give_it_one(engine: Engine) -> None:
    with pytest.raises(EngineProfileError, match="torch_profiler_dir"):
        profile_engine(engine.url, 0.01)
    assert engine.asked == ["/start_profile"]


@pytest.mark.parametrize("engine", [500], indirect=True)
def test_a_failure_is_told(engine: Engine) -> None:
    with pytest.raises(EngineProfileError, match="HTTP 500"):
        profile_engine(engine.url, 0.01)


@pytest.mark.parametrize("url", ["127.0.0.1:1", "ftp://x/", "http://127.0.0.1:1"])
def test_an_address_that_leads_nowhere(url: str) -> None:
    with pytest.raises(EngineProfileError):
        profile_engine(url, 0.01)
