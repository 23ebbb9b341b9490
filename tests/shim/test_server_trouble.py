"""The server in trouble: bad input, clients that hang up, an engine that dies, hangs or is full."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import httpx
import pytest

from engine_shim.serving import ServeOptions
from tests.shim.live_engine import LiveEngine, live_engine

BODY_LIMIT = 64 << 10


@pytest.fixture(scope="module")
def live():
    with live_engine(ServeOptions(max_body_bytes=BODY_LIMIT), kv_pool_tokens=4096) as engine:
        yield engine


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "a"}
DEEP = b'{"x":' + b"[" * 20_000
WRONG = {
    "no JSON": (COMPLETIONS, b"{", 400, None),
    "no UTF-8": (COMPLETIONS, b"\xff\xfe", 400, None),
    "nothing at all": (COMPLETIONS, b"", 400, None),
    "not an object": (COMPLETIONS, [], 400, None),
    "JSON deeper than any parser goes": (COMPLETIONS, DEEP, 400, None),
    "no prompt": (COMPLETIONS, {}, 400, "prompt"),
    "an empty prompt": (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
    "a prompt that is a number": (COMPLETIONS, {"prompt": 7}, 400, "prompt"),
    "two prompts": (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "prompt"),
    "ids and text mixed": (COMPLETIONS, {"prompt": [1, "a"]}, 400, "prompt"),
    "an id beyond the vocabulary": (COMPLETIONS, {"prompt": [1, 512]}, 400, "prompt"),
    "a negative id": (COMPLETIONS, {"prompt": [-1]}, 400, "prompt"),
    "max_tokens as text": (COMPLETIONS, {"prompt": "a", "max_tokens": "9"}, 400, "max_tokens"),
    "no tokens wanted": (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    "n = 2": (COMPLETIONS, {"prompt": "a", "n": 2}, 400, "n"),
    "logprobs": (COMPLETIONS, {"prompt": "a", "logprobs": 3}, 400, "logprobs"),
    "a hot temperature": (COMPLETIONS, {"prompt": "a", "temperature": 3}, 400, "temperature"),
    "no mass": (COMPLETIONS, {"prompt": "a", "top_p": 0}, 400, "top_p"),
    "a seed of 100 digits": (COMPLETIONS, {"prompt": "a", "seed": 10**100}, 400, "seed"),
    "five stop strings": (COMPLETIONS, {"prompt": "a", "stop": list("abcde")}, 400, "stop"),
    "an empty stop string": (COMPLETIONS, {"prompt": "a", "stop": ""}, 400, "stop"),
    "usage in a stream that is none": (COMPLETIONS, {"prompt": "a", "stream_options": {}}, 400, "stream_options"),
    "another model": (COMPLETIONS, {"prompt": "a", "model": "gpt-9"}, 404, "model"),
    "beyond the context": (COMPLETIONS, {"prompt": "a", "max_tokens": 500_000}, 400, "prompt"),
    "beyond the KV pool": (COMPLETIONS, {"prompt": "a" * 4000, "max_tokens": 500}, 400, None),
    "no messages": (CHAT, {"messages": []}, 400, "messages"),
    "a message that is text": (CHAT, {"messages": ["hi"]}, 400, "messages"),
    "an image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    "tools": (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "tools"),
    "JSON wanted": (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}, 400, "response_format"),
    "top logprobs": (CHAT, {"messages": [USER], "top_logprobs": 2}, 400, "top_logprobs"),
    "a penalty": (COMPLETIONS, {"prompt": "a", "presence_penalty": 0.5}, 400, "presence_penalty"),
    "another penalty": (CHAT, {"messages": [USER], "frequency_penalty": -1}, 400, "frequency_penalty"),
    "a bias": (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 100}}, 400, "logit_bias"),
    "the best few": (COMPLETIONS, {"prompt": "a", "top_k": 5}, 400, "top_k"),
    "tokens to stop at": (COMPLETIONS, {"prompt": "a", "stop_token_ids": [5]}, 400, "stop_token_ids"),
    "a body over the limit": (COMPLETIONS, {"prompt": "a" * BODY_LIMIT}, 413, None),
}


@pytest.mark.parametrize(("path", "body", "status", "param"), WRONG.values(), ids=WRONG.keys())
def test_bad_requests_get_openai_error_objects(live, path, body, status, param):
    """Each wrong body is answered with its status and an error object that names the key; nothing reaches the engine."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httpx.post(live.url + path, content=raw)
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["param"] == param


ASKS_NOTHING = {
    "n": 1, "logprobs": None, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_k": -1, "min_p": 0,
    "repetition_penalty": 1.0, "stop_token_ids": [], "min_tokens": 2, "tools": [], "functions": None, "top_logprobs": None,
    "response_format": {"type": "text"}, "service_tier": "auto",
}  # fmt: skip


def test_keys_that_ask_for_nothing_are_welcome(live):
    """Clients spell defaults out. `min_tokens` is kept by a model that never ends by itself."""
    body = {"messages": [USER], "max_tokens": 2} | ASKS_NOTHING
    assert httpx.post(live.url + CHAT, json=body).json()["usage"]["completion_tokens"] == 2


def test_an_oversized_body_of_unknown_length_is_cut_off(live):
    """A chunked body is refused as soon as it passes the limit, however long it would have been."""

    def endless():
        for _ in range(10_000):
            yield b" " * 4096

    with suppress(httpx.WriteError):  # the server may hang up before the client has read the answer: just as good
        assert httpx.post(live.url + COMPLETIONS, content=endless()).status_code == 413
    assert httpx.get(live.url + "/health").status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", COMPLETIONS, 405), ("POST", "/v1/embeddings", 404)])
def test_wrong_paths_and_methods_get_error_objects_too(live, method, path, status):
    """Clients can read every error the same way."""
    response = httpx.request(method, live.url + path)
    assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")


def test_errors_do_not_quote_the_prompt(live):
    """A refused prompt does not come back in the message, where logs of clients and proxies would keep it."""
    for body in ({"prompt": "whisper" * 2000}, {"prompt": ["whisper", 1]}, {"prompt": {"whisper": 1}}):
        assert "whisper" not in httpx.post(live.url + COMPLETIONS, json=body).text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_blocks_within_a_step(stream):
    """After a disconnect in mid-answer the request leaves the engine with the next step, and no block stays held."""
    with live_engine(kv_pool_tokens=16_384) as engine:
        aborted_at = []
        abort = engine.serving.engine.abort
        engine.serving.engine.abort = lambda request_id: (aborted_at.append(engine.witness.steps), abort(request_id))
        start_and_hang_up(engine, {"prompt": "a" * 100, "max_tokens": 12_000, "stream": stream})
        [(request, left_at)] = engine.witness.wait_for_finished()
        assert request.finish_reason == "abort"
        assert 0 < request.output_tokens < 12_000
        assert left_at - aborted_at[0] <= 1
        assert engine.serving.engine.pool.used_blocks == 0
        page = httpx.get(engine.url + "/metrics?name[]=shim:requests_aborted_total").text
        assert page.splitlines()[-1].endswith(" 1")


def start_and_hang_up(engine: LiveEngine, body: dict) -> None:
    """Send a request on a raw socket, wait until the engine decodes it, and close the connection."""
    raw = json.dumps(body).encode()
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        if body["stream"]:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        engine.witness.wait_for_steps(5)


def test_a_dead_engine_is_said_to_be_dead(caplog):
    """When a step raises, those in flight get a 500, later ones a 503, /health says 503, and telemetry counts the error."""
    with live_engine() as engine:

        def burst(plan):
            raise RuntimeError("out of cheese")

        engine.serving.engine.runner.run = burst
        first = httpx.post(engine.url + COMPLETIONS, json={"prompt": "a"})
        assert (first.status_code, first.json()["error"]["type"]) == (500, "server_error")
        assert httpx.post(engine.url + COMPLETIONS, json={"prompt": "a"}).status_code == 503
        health = httpx.get(engine.url + "/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_dead")
        [(request, _)] = engine.witness.wait_for_finished()
        assert request.finish_reason == "error"
        assert httpx.get(engine.url + "/metrics").status_code == 200, "the page outlives the engine"
    assert "out of cheese" in caplog.text


def test_a_hung_step_leaves_the_server_answering_and_able_to_stop():
    """While a step hangs, /health and pages answer (as in real engines), no token comes, and shutdown does not wait."""
    with live_engine(ServeOptions(fault=("hung_step:at_s=0,until_s=86400",))) as engine:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(engine.url + COMPLETIONS, json={"prompt": "a"}, timeout=0.5)
        assert httpx.get(engine.url + "/health").status_code == 200
        page = httpx.get(engine.url + "/metrics/?name[]=shim:steps_total").text
        assert page.splitlines()[-1].endswith(" 0")


def test_a_full_queue_refuses_with_503():
    """With one place in the queue and a hung engine, the request after next is refused, and said to be."""
    with live_engine(ServeOptions(fault=("hung_step:at_s=0,until_s=86400",)), max_waiting=1) as engine:
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(engine.url + COMPLETIONS, json={"prompt": "a"}, timeout=0.3)
        refused = httpx.post(engine.url + COMPLETIONS, json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
