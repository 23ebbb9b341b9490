"""The OpenAI endpoints of a real server over the real torch engine, spoken to with real HTTP."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from engine_shim.model.tokens import CharTokenizer
from engine_shim.serving import ServeOptions
from tests.shim.live_engine import live_engine

GREEDY = {"prompt": "The queue is growing", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def live():
    with live_engine(ServeOptions(max_body_bytes=64 << 10), kv_pool_tokens=8192, max_model_len=4096) as engine:
        yield engine


@pytest.fixture
def client(live):
    with httpx.Client(base_url=live.url, timeout=30) as http:
        yield http


def events(response: httpx.Response) -> list[dict]:
    """The JSON events of a stream whose framing is checked: `data: …`, blank lines between, [DONE] at the end."""
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks[:-2])
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_a_completion_has_text_reason_and_usage(client):
    """24 tokens of the tiny model are 24 characters; usage counts prompt and output."""
    body = client.post("/v1/completions", json=GREEDY | {"model": "tiny"}).raise_for_status().json()
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    [choice] = body["choices"]
    assert len(choice["text"]) == 24
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 24, 44)


def test_a_stream_says_the_same_as_the_whole(client):
    """The pieces of a stream add up to the whole answer; the last chunks bear reason and usage, the others usage null."""
    whole = client.post("/v1/completions", json=GREEDY).json()
    wish = GREEDY | {"stream": True, "stream_options": {"include_usage": True}}
    response = client.post("/v1/completions", json=wish)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1


def test_streams_have_no_usage_unless_asked(client):
    """Without stream_options no chunk has the key."""
    assert not any("usage" in chunk for chunk in events(client.post("/v1/completions", json=GREEDY | {"stream": True})))


def test_chat_whole_and_streamed(client):
    """A chat answer is a message; streamed, it begins with the role and ends with an empty delta."""
    wish = {"messages": [{"role": "user", "content": "why?"}], "max_tokens": 10, "temperature": 0}
    whole = client.post("/v1/chat/completions", json=wish).json()
    assert whole["object"] == "chat.completion"
    message = whole["choices"][0]["message"]
    assert (message["role"], len(message["content"])) == ("assistant", 10)
    chunks = events(client.post("/v1/chat/completions", json=wish | {"stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]


def test_a_prompt_of_ids_is_the_prompt_of_its_text(client):
    """Text and token ids, plain or as a batch of one, give the same greedy answer."""
    ids = CharTokenizer().encode(GREEDY["prompt"])
    forms = [GREEDY["prompt"], ids, [GREEDY["prompt"]], [ids]]
    answers = {
        client.post("/v1/completions", json=GREEDY | {"prompt": form}).json()["choices"][0]["text"] for form in forms
    }
    assert len(answers) == 1


def test_a_seed_makes_sampling_reproducible(client):
    """The same seed gives the same text, another seed another one."""

    def say(seed: int) -> str:
        wish = {"prompt": "x", "max_tokens": 30, "temperature": 1.5, "top_p": 0.9, "seed": seed}
        return client.post("/v1/completions", json=wish).json()["choices"][0]["text"]

    assert say(1) == say(1)
    assert say(1) != say(2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it_and_the_request_with_it(client, live, stream):
    """The text ends before the stop string, usage counts the tokens up to its end, and the engine computes no more."""
    text = client.post("/v1/completions", json=GREEDY).json()["choices"][0]["text"]
    stop = text[9:12]
    cut = text.index(stop)
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = client.post("/v1/completions", json=GREEDY | {"stop": ["§§§", stop], "stream": stream} | options)
    if stream:
        *chunks, last = events(response)
        shown = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        reason, usage = chunks[-1]["choices"][0]["finish_reason"], last["usage"]
    else:
        [choice], usage = response.json()["choices"], response.json()["usage"]
        shown, reason = choice["text"], choice["finish_reason"]
    assert (shown, reason) == (text[:cut], "stop")
    assert usage["completion_tokens"] == cut + 3
    newest, _ = live.witness.wait_for_finished()[-1]
    assert (newest.output_tokens, newest.finish_reason) == (cut + 3, "stop")


def test_an_end_token_ends_the_request_unless_ignored(client):
    """Asked to end at a token, the engine stops there and does not show it; ignore_eos goes on."""
    text = client.post("/v1/completions", json=GREEDY).json()["choices"][0]["text"]
    token = CharTokenizer().encode(text[7])[0]
    with live_engine(ServeOptions(eos_token_id=(token,))) as other:
        cut = httpx.post(f"{other.url}/v1/completions", json=GREEDY).json()
        assert cut["choices"][0]["text"] == text[: text.index(text[7])]
        assert cut["choices"][0]["finish_reason"] == "stop"
        on = httpx.post(f"{other.url}/v1/completions", json=GREEDY | {"ignore_eos": True}).json()
        assert on["choices"][0]["text"] == text


def test_a_repeated_prompt_is_taken_from_the_prefix_cache(client):
    """The second time all full blocks of the prompt are cached, usage says so, and the answer is the same."""
    wish = GREEDY | {"prompt": "prefix " * 20}
    first, second = (client.post("/v1/completions", json=wish).json() for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
    assert first["choices"] == second["choices"]


def test_thirty_two_streams_at_once_are_all_served_whole(live):
    """32 concurrent streams of different lengths each get exactly the tokens that they asked for."""

    async def one(http: httpx.AsyncClient, index: int) -> int:
        wish = {"prompt": f"{index}" * (5 + index * 3), "max_tokens": 20 + index, "stream": True}
        response = await http.post("/v1/completions", json=wish)
        chunks = events(response)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        return sum(len(chunk["choices"][0]["text"]) for chunk in chunks)

    async def all_of_them() -> list[int]:
        async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
            return await asyncio.gather(*(one(http, index) for index in range(32)))

    assert asyncio.run(all_of_them()) == [20 + index for index in range(32)]


def test_the_official_client_understands_answers_streams_and_errors(live):
    """openai-python parses a chat, a stream with usage, the model list, and raises its own exception types."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        messages = [{"role": "user", "content": "hello"}]
        whole = api.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=0)
        stream = api.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8
        assert api.models.retrieve("tiny").id == "tiny"
        for ask in (lambda: api.completions.create(model="gpt-9", prompt="x"), lambda: api.models.retrieve("gpt/9")):
            with pytest.raises(openai.NotFoundError) as missing:
                ask()
            assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            api.completions.create(model="tiny", prompt="x", n=2)
        assert refused.value.param == "n"
