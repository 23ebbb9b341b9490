"""Degraded mode over HTTP: what is answered from the cache says so, is counted apart, and is never a sampled answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.shim.live_engine import LiveEngine, live_engine
from tests.shim.test_protection_http import COMPLETIONS, SHORT, busy, page, refused

CHAT = "/v1/chat/completions"
TALK = {"messages": [{"role": "user", "content": "why is it slow?"}], "max_tokens": 4, "temperature": 0}


def kept(live: LiveEngine) -> int:
    return len(live.serving.server.response_cache)


def test_a_chat_client_sees_that_its_answer_is_an_old_one():
    """The official client: whole and streamed, the same words as before, and the header that marks them."""
    with live_engine(max_concurrency=1, response_cache_entries=4) as live:
        with openai.OpenAI(base_url=live.url + "/v1", api_key="sk-x", max_retries=0) as client:
            chat = client.chat.completions
            first = chat.create(model="tiny", **TALK)
            live.witness.wait_for_finished(1)
            with busy(live):
                raw = chat.with_raw_response.create(model="tiny", **TALK)
                assert raw.headers["x-degraded"] == "response-cache"
                again = raw.parse()
                assert again.choices[0].message == first.choices[0].message
                assert again.choices[0].finish_reason == first.choices[0].finish_reason
                assert (again.usage.completion_tokens, again.id != first.id) == (4, True)
                chunks = chat.create(model="tiny", stream=True, **TALK)
                said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                assert said == first.choices[0].message.content
        counts = page(live)
        assert counts["shim:degraded_answers_total"] == 2
        assert counts["concurrency"] == 2, "a request that got an old answer was refused all the same"


@pytest.mark.parametrize("change", [{"temperature": 1}, {"temperature": 0.01}, {"temperature": None}])
def test_a_sampled_answer_is_never_kept(change: dict):
    """Not at any temperature above 0, nor at the default one, which is 1; and such a request is never given an old answer."""
    with live_engine(max_concurrency=1, response_cache_entries=4) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            for body, path in ((SHORT, COMPLETIONS), (TALK, CHAT)):
                assert http.post(path, json=body | change).status_code == 200
            assert kept(live) == 0
            assert http.post(COMPLETIONS, json=SHORT).status_code == 200
            assert kept(live) == 1
            live.witness.wait_for_finished(3)
            with busy(live):
                refused(http.post(COMPLETIONS, json=SHORT | change), "concurrency", "overloaded_error")
        assert page(live)["shim:degraded_answers_total"] == 0


def test_switched_off_an_overloaded_engine_refuses_what_it_has_answered():
    """Opt-in: without the setting nothing is kept, nothing is marked, and no series speaks of it."""
    with live_engine(max_concurrency=1) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            assert http.post(COMPLETIONS, json=SHORT).status_code == 200
            live.witness.wait_for_finished(1)
            with busy(live):
                reply = http.post(COMPLETIONS, json=SHORT)
                refused(reply, "concurrency", "overloaded_error")
                assert "x-degraded" not in reply.headers
        assert kept(live) == 0
        assert not any("degraded" in name or "response_cache" in name for name in page(live))


def test_who_sends_too_much_gets_no_old_answer_either():
    """A rate limit is early: it is about the sender, not about an engine without room."""
    with live_engine(rate_limit_per_s=0.02, rate_limit_burst=1, response_cache_entries=4) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            assert http.post(COMPLETIONS, json=SHORT).status_code == 200
            refused(http.post(COMPLETIONS, json=SHORT), "rate_limit_exceeded", "rate_limit_error")
        counts = page(live)
        assert (counts["rate_limited"], counts["shim:degraded_answers_total"]) == (1, 0)


def test_what_waits_in_vain_gets_the_old_answer_at_its_deadline():
    """Let in, and dropped from the queue: as good as refused. Whole and streamed; what nobody has asked before is 429."""
    with live_engine(max_num_seqs=1, deadline_rejection=True, response_cache_entries=4) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http, ThreadPoolExecutor(3) as pool:
            first = http.post(COMPLETIONS, json=SHORT)
            live.witness.wait_for_finished(1)
            late = {"deadline_s": 0.3}
            wishes = [SHORT | late, SHORT | late | {"stream": True}, SHORT | late | {"prompt": "why not?"}]
            with busy(live):
                whole, streamed, other = pool.map(lambda wish: http.post(COMPLETIONS, json=wish), wishes)
        assert whole.json()["choices"] == first.json()["choices"]
        assert whole.json()["usage"]["completion_tokens"] == 4
        assert whole.headers["x-degraded"] == streamed.headers["x-degraded"] == "response-cache"
        assert streamed.text.endswith("data: [DONE]\n\n")
        refused(other, "deadline", "overloaded_error")
        assert "x-degraded" not in other.headers
        counts = page(live)
        assert (counts["deadline"], counts["shim:degraded_answers_total"]) == (3, 2)
        assert kept(live) == 1
