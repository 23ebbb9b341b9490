"""Overload protection as clients meet it: a real server, real HTTP, the official client, and the page beside them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_shim.http.response_cache import KeptAnswer
from tests.shim.live_engine import LiveEngine, live_engine

COMPLETIONS = "/v1/completions"
SHORT = {"prompt": "why is it slow?", "max_tokens": 4, "temperature": 0}


@contextmanager
def busy(live: LiveEngine) -> Iterator[None]:
    """A request that streams without an end, while the block runs."""
    wish = {"prompt": "forever", "max_tokens": 4000, "stream": True}
    with httpx.Client(base_url=live.url, timeout=30) as http, http.stream("POST", COMPLETIONS, json=wish) as reply:
        tokens = reply.iter_bytes()
        next(tokens)  # its first token has come: it runs
        yield
        tokens.close()


def page(live: LiveEngine) -> dict[str, float]:
    """Samples by name, of rejections by reason."""
    text = httpx.get(live.url + "/metrics").text
    return {
        sample.labels.get("reason", sample.name): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def refused(response: httpx.Response, code: str, kind: str) -> None:
    """An OpenAI error object with a time to come back."""
    assert response.status_code == 429
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (code, kind, None)
    assert 1 <= int(response.headers["retry-after"]) <= 60


def test_the_rate_limit_is_each_keys_own_and_does_not_look_at_the_engine():
    """Two of a burst pass, the third is refused with 429; another key, and another tenant, have buckets of their own."""
    with live_engine(rate_limit_per_s=0.02, rate_limit_burst=2) as live:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("sk-one", "sk-two"))
        with httpx.Client(base_url=live.url, timeout=30) as http:
            replies = [http.post(COMPLETIONS, json=SHORT, headers=one) for _ in range(3)]
            assert [reply.status_code for reply in replies] == [200, 200, 429]
            refused(replies[-1], "rate_limit_exceeded", "rate_limit_error")
            assert http.post(COMPLETIONS, json=SHORT, headers=two).status_code == 200
            tenants = [http.post(COMPLETIONS, json=SHORT | {"user": user}) for user in ("a", "a", "a", "b")]
            assert [reply.status_code for reply in tenants] == [200, 200, 429, 200]
        assert page(live)["rate_limited"] == 2
        left = [request for request, _ in live.witness.wait_for_finished(8)]
        assert not any("sk-" in request.client or "sk-" in request.tenant for request in left)
        assert len({request.client for request in left}) == 3


def test_the_concurrency_cap_refuses_late_and_is_counted_apart():
    """With one request running and one allowed, the next is told to come back; once there is room it is served."""
    with live_engine(max_concurrency=1, rate_limit_per_s=100.0) as live:
        with busy(live):
            refused(httpx.post(live.url + COMPLETIONS, json=SHORT), "concurrency", "overloaded_error")
            with openai.OpenAI(base_url=live.url + "/v1", api_key="sk-x", max_retries=0) as client:
                with pytest.raises(openai.RateLimitError) as caught:
                    client.completions.create(model="tiny", prompt="a", max_tokens=2)
                assert int(caught.value.response.headers["retry-after"]) >= 1
        live.witness.wait_for_finished(3)
        assert httpx.post(live.url + COMPLETIONS, json=SHORT, timeout=30).status_code == 200
        counts = page(live)
        assert (counts["concurrency"], counts["rate_limited"], counts["queue_full"]) == (2, 0, 0)


def test_a_request_leaves_the_queue_at_its_deadline():
    """One slot is taken for good: who waits is answered 429 when its deadline passes, by header and by body, streamed too."""
    with live_engine(max_num_seqs=1, deadline_rejection=True) as live, busy(live):
        with httpx.Client(base_url=live.url, timeout=30) as http, ThreadPoolExecutor(3) as pool:
            wishes = [
                {"json": SHORT, "headers": {"x-deadline-seconds": "0.3"}},
                {"json": SHORT | {"deadline_s": 0.3}},
                {"json": SHORT | {"deadline_s": 0.2, "stream": True}},
            ]
            for reply in pool.map(lambda wish: http.post(COMPLETIONS, **wish), wishes):
                refused(reply, "deadline", "overloaded_error")
        assert page(live)["deadline"] == 3
        gone = [r for r, _ in live.witness.wait_for_finished(3) if r.rejected_for == "deadline"]
        assert all(r.finished_at >= r.deadline_at for r in gone)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "1e9"])
def test_a_deadline_that_is_no_time_is_an_error(value: str):
    with live_engine() as live:
        reply = httpx.post(live.url + COMPLETIONS, json=SHORT, headers={"x-deadline-seconds": value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-deadline-seconds")
        assert httpx.post(live.url + COMPLETIONS, json=SHORT | {"deadline_s": 0}).status_code == 400


def test_degraded_mode_answers_what_it_has_answered_before():
    """Refused for overload, a request at temperature 0 gets the answer of its equal, marked; others are refused."""
    with live_engine(max_concurrency=1, response_cache_entries=4) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            first = http.post(COMPLETIONS, json=SHORT)
            assert first.status_code == 200
            assert "x-degraded" not in first.headers
            live.witness.wait_for_finished(1)
            with busy(live):
                again = http.post(COMPLETIONS, json=SHORT)
                assert again.headers["x-degraded"] == "response-cache"
                assert again.json()["choices"] == first.json()["choices"]
                assert again.json()["usage"]["completion_tokens"] == 4
                streamed = http.post(COMPLETIONS, json=SHORT | {"stream": True})
                assert streamed.headers["x-degraded"] == "response-cache"
                assert streamed.text.endswith("data: [DONE]\n\n")
                for other in ({"max_tokens": 5}, {"temperature": 1}, {"prompt": "why is it slow!"}):
                    refused(http.post(COMPLETIONS, json=SHORT | other), "concurrency", "overloaded_error")
        counts = page(live)
        assert (counts["shim:degraded_answers_total"], counts["shim:response_cache_entries"]) == (2, 1)
        assert counts["concurrency"] == 5
        assert "slow" not in httpx.get(live.url + "/metrics").text


def test_a_reply_that_was_cut_short_is_not_kept():
    """Only whole answers are remembered: the client went away in the midst of this one."""
    with live_engine(response_cache_entries=4) as live:
        with httpx.Client(base_url=live.url, timeout=30) as http:
            wish = {"prompt": "x", "max_tokens": 4000, "temperature": 0, "stream": True}
            with http.stream("POST", COMPLETIONS, json=wish) as reply:
                next(reply.iter_bytes())
        live.witness.wait_for_finished(1)
        assert len(live.serving.server.response_cache) == 0


def test_without_the_setting_nothing_is_kept():
    """Degraded mode is opt-in."""
    with live_engine() as live:
        assert httpx.post(live.url + COMPLETIONS, json=SHORT, timeout=30).status_code == 200
        assert len(live.serving.server.response_cache) == 0
        assert "shim:degraded_answers_total" not in page(live)
        assert "rate_limited" not in page(live)


def test_the_cache_is_bounded_and_salted():
    """The answer used longest ago goes first; an answer of any length is not kept; keys differ from process to process."""
    from engine_shim.http.protocol import Ask
    from engine_shim.http.response_cache import LONGEST_ANSWER, ResponseCache
    from engine_shim.model.sampling import Sampling

    def ask(prompt: list[int]) -> Ask:
        return Ask(False, prompt, 4, Sampling(0.0, 1.0, 1), (), False, False, False, "")

    cache, other = ResponseCache(2), ResponseCache(2)
    keys = [cache.key(ask([n])) for n in range(3)]
    assert len(set(keys)) == 3
    assert cache.key(ask([0])) == keys[0] != other.key(ask([0]))
    for key in keys[:2]:
        cache.keep(key, KeptAnswer("text", 1, "stop"))
    assert cache.find(keys[0]) is not None
    cache.keep(keys[2], KeptAnswer("text", 1, "stop"))
    assert [cache.find(key) is not None for key in keys] == [True, False, True]
    cache.keep(keys[1], KeptAnswer("x" * (LONGEST_ANSWER + 1), 1, "stop"))
    assert cache.find(keys[1]) is None
