"""Faults behind a real server, begun and ended through the admin route."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from engine_shim.clock import RealClock, VirtualClock
from engine_shim.faults.live.faults import LiveFaults
from engine_shim.http.admin import AdminRoute
from engine_shim.serving import ServeOptions
from tests.shim.live_engine import LiveEngine, live_engine

MODEL = {"model": "7b", "kv_pool_tokens": 20_000}


@contextmanager
def served(**options: object) -> Iterator[tuple[LiveEngine, httpx.Client]]:
    """A modelled engine with the admin route, and a client."""
    asked = ServeOptions(runner="model", admin=True, **options)  # type: ignore[arg-type]
    with live_engine(asked, **MODEL) as engine, httpx.Client(base_url=engine.url, timeout=20) as client:
        yield engine, client


def ask(client: httpx.Client, tokens: int = 8) -> httpx.Response:
    body = {"model": "7b", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    return client.post("/v1/completions", json=body)


def begin(client: httpx.Client, kind: str, **keys: float) -> int:
    answer = client.post("/admin/faults", json={"kind": kind, **keys})
    assert answer.status_code == 201, answer.text
    number: int = answer.json()["number"]
    return number


def test_a_hang_holds_a_step_until_the_fault_is_ended() -> None:
    with served() as (_, client):
        ask(client)
        number = begin(client, "hung_step", until_s=600)
        told: list[int] = []
        asking = threading.Thread(target=lambda: told.append(ask(client).status_code))
        asking.start()
        asking.join(0.5)
        assert asking.is_alive()
        assert client.get("/admin/faults").json()["faults"][0]["kind"] == "hung_step"
        assert client.delete(f"/admin/faults/{number}").status_code == 204
        asking.join(10)
        assert told == [200]
        assert client.get("/admin/faults").json() == {"faults": []}


def test_a_clock_limit_shows_on_the_device_page_and_goes_again() -> None:
    with served() as (_, client):
        number = begin(client, "clock_limit", ratio=0.25)
        ask(client)
        page = wait_for(client, lambda clock: clock < 600)
        assert page < 600
        client.delete(f"/admin/faults/{number}")
        ask(client)
        assert wait_for(client, lambda clock: clock > 1500) > 1500


def wait_for(client: httpx.Client, enough: object, limit_s: float = 8) -> float:
    """The SM clock of the device page, MHz, once it is as wanted: the page is renewed once a second."""
    deadline = time.monotonic() + limit_s
    while True:
        text = client.get("/gpu/metrics").text
        clock = next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("DCGM_FI_DEV_SM_CLOCK{"))
        if enough(clock) or time.monotonic() > deadline:  # type: ignore[operator]
            return clock


def test_a_grammar_holds_requests_back_and_is_counted_as_deferred() -> None:
    with served() as (_, client):
        begin(client, "grammar_compile", compile_s=0.6)
        begun = time.monotonic()
        assert ask(client).status_code == 200
        assert time.monotonic() - begun >= 0.6
        assert "shim:requests_deferred" in client.get("/metrics").text


def test_a_slow_tokenizer_and_a_frozen_page_need_no_help_of_the_engine() -> None:
    with served() as (engine, client):
        ask(client)
        frozen = client.get("/metrics").text
        begin(client, "exporter_frozen")
        begin(client, "slow_tokenizer", seconds_per_1k_tokens=20)
        begun = time.monotonic()
        assert ask(client).status_code == 200
        assert time.monotonic() - begun > 0.3
        assert client.get("/metrics").text == frozen
        assert engine.witness.steps > 8


def test_a_proxy_passes_tokens_on_in_lumps() -> None:
    """The same tokens in far fewer pieces."""
    with served() as (_, client):
        body = {"model": "7b", "prompt": "hello", "max_tokens": 60, "stream": True, "ignore_eos": True}

        def pieces() -> tuple[int, str]:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                chunks = list(answer.iter_raw())
            return len(chunks), b"".join(chunks).decode()

        plain, text = pieces()
        begin(client, "lumpy_proxy", every_s=0.2)
        lumps, same = pieces()
        assert lumps < plain / 3
        assert same.endswith("data: [DONE]\n\n")
        assert said(text) == said(same)


def test_an_oversized_request_blocks_the_queue_until_its_fault_is_ended() -> None:
    """Nobody is served behind it; when the fault is ended, the request is gone with the next step."""
    with served() as (_, client):
        number = begin(client, "oversized_request")
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=1.0)
        client.delete(f"/admin/faults/{number}")
        assert ask(client).status_code == 200


def said(stream: str) -> str:
    """The text of all events of a stream."""
    return "".join(re.findall(r'"text":"((?:[^"\\]|\\.)*)"', stream))


def test_leaked_blocks_are_missing_from_the_pool() -> None:
    with served() as (engine, client):
        begin(client, "block_leak", blocks_per_min=60_000)
        ask(client)
        assert engine.serving.engine.pool.free_blocks < engine.serving.engine.pool_blocks - 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Input data was truncated"),
        (b'{"kind": "gremlin"}', "kind must be one of"),
        (b'{"kind": "hung_collective"}', "virtual time only"),
        (b'{"kind": "clock_limit", "ratio": 2}', "ratio must be at most 1"),
        (b'{"kind": "slow_step", "until_s": 3}', "'factor' is missing"),
        (b'{"kind": ["hung_step"]}', "Expected"),
        (b" " * 5000, "larger than"),
    ],
)
def test_a_bad_fault_is_refused_with_a_reason(body: bytes, message: str) -> None:
    status, text = call(b"POST", body)
    assert status in (400, 413)
    assert message in text


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("127.0.0.1", [], 200),
        ("::1", [], 200),
        ("::ffff:127.0.0.1", [], 200),
        ("10.0.0.7", [], 404),
        ("::ffff:10.0.0.7", [], 404),
        ("testclient", [], 404),
        ("127.0.0.1", [(b"origin", b"https://elsewhere.example")], 404),
    ],
)
def test_only_loopback_clients_that_are_no_web_page_get_in(
    client: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    assert call(b"GET", b"", client, headers)[0] == status


def test_the_route_is_off_unless_asked_for() -> None:
    with live_engine(ServeOptions(runner="model"), **MODEL) as engine:  # type: ignore[arg-type]
        assert httpx.get(f"{engine.url}/admin/faults").status_code == 404


def call(
    method: bytes, body: bytes, client: str = "127.0.0.1", headers: list[tuple[bytes, bytes]] | None = None
) -> tuple[int, str]:
    """Ask the admin route as a client of that address would."""
    import anyio

    sent: list[Message] = []

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("passed on")

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method.decode(), "path": "/admin/faults", "headers": headers or [],
        "client": (client, 1), "query_string": b"", "server": ("127.0.0.1", 80), "scheme": "http",
    }  # fmt: skip
    route = AdminRoute(nothing, LiveFaults((), RealClock(), "model"))
    anyio.run(route, scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


def test_faults_of_the_command_line_name_what_is_wrong() -> None:
    for text, message in {
        "hung_step:at_s=x": "could not convert",
        "slow_transfer:at_s=1,until_s=2,factor=2": "virtual time only",
        "clock_limit:at_s=1,ratio=0.5": "modelled device",
    }.items():
        with pytest.raises(ValueError, match=message) as error:
            LiveFaults([text], VirtualClock(0.0), "torch")
        assert text in str(error.value)
