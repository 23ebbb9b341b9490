"""Engines are asked who they are: once a life, only what is listed is kept, refusals are respected."""

import asyncio
import json

import pytest

from gpuwatch.dialects import all_dialects
from gpuwatch.dialects.about import ABOUT, ADAPTERS
from gpuwatch.model import Subject
from gpuwatch.sources.page.self_description import SelfDescription
from tests.sources.stub_server import Reply, StubServer

ENGINE = Subject(engine="e")


class Page:
    """What the page says of the engine."""

    subject = ENGINE

    def __init__(self, dialect, lives=1):
        self.dialect = dialect
        self.lives = lives


class Played:
    """Polls at times; a function among them changes page and answers. `answers`: path → Reply or decoded JSON."""

    def __init__(self, dialect, answers, *steps):
        self.page = Page(dialect)
        self.answers = dict(answers)
        self.heard, self.told, self.dropped = [], [], 0
        asyncio.run(self._play(steps))

    def _answer(self, target):
        answer = self.answers.get(target, Reply(status=404))
        return answer if isinstance(answer, Reply) else Reply(json.dumps(answer).encode())

    async def _play(self, steps):
        async with StubServer(self._answer) as server:
            source = SelfDescription(self.page, server.url, self._hear, b"k")
            for step in steps:
                if callable(step):
                    step(self)
                else:
                    batch = await source.poll(float(step))
                    self.told.append({k: v for info in batch.info for k, v in info.labels.items()})
                    self.dropped += batch.dropped
            await source.aclose()
            self.asked = server.targets

    def _hear(self, info, how):
        self.heard.append((how, info.labels))


def restart(played):
    played.page.lives += 1


def test_an_engine_is_asked_once_a_life():
    played = Played("trtllm", {"/version": {"version": "1.2.0"}}, 0, 5, 10, restart, 15, 20)
    assert played.told == [{"version": "1.2.0"}, {}, {}, {"version": "1.2.0"}, {}]
    assert played.asked == ["/version", "/version"]
    assert played.heard == [("about", {"version": "1.2.0"})] * 2


def test_an_engine_that_is_not_known_yet_is_not_asked():
    assert Played("", {}, 0, 5).asked == []


SGLANG = {
    "version": "0.5.12", "model_path": "/models/x", "api_key": "topsecret", "admin_api_key": "other", "tp_size": 8,
    "served_model_name": "hf_abcdefgh12345678", "page_size": 64, "max_running_requests": 256, "schedule_policy": "lpm",
    "internal_states": [{"memory": 1}], "dist_init_addr": "10.0.0.1:5000", "disable_radix_cache": False, "unheard_of": "x",
}  # fmt: skip


def test_of_a_whole_command_line_only_listed_fields_are_kept_and_cleaned():
    played = Played("sglang", {"/server_info": SGLANG}, 0)
    assert played.told == [
        {
            "version": "0.5.12", "model": "/models/x", "arg_tp_size": "8", "arg_served_model_name": "<hidden>",
            "kv_block_tokens": "64", "max_num_seqs": "256", "arg_schedule_policy": "lpm", "arg_disable_radix_cache": "False",
        }
    ]  # fmt: skip
    assert "secret" not in repr(played.told)


def test_the_older_path_serves_where_the_newer_is_not_there():
    played = Played("sglang", {"/get_server_info": {"version": "0.4.9"}}, 0)
    assert played.told == [{"version": "0.4.9"}]


def test_nested_fields_of_llama_cpp():
    props = {"build_info": "b6000-abc", "total_slots": 4, "default_generation_settings": {"n_ctx": 8192, "params": {}}}
    told = Played("llamacpp", {"/props": props}, 0).told
    assert told == [{"version": "b6000-abc", "max_num_seqs": "4", "arg_ctx_size": "8192"}]


def models(*adapters):
    base = {"id": "base", "parent": None}
    return {"data": [base, *({"id": name, "parent": "base"} for name in adapters)]}


def test_adapters_are_counted_and_fingerprinted_each_minute():
    def load(played):
        played.answers["/v1/models"] = models("acme-legal", "acme-sales")

    played = Played("vllm", {"/version": {"version": "1"}, "/v1/models": models("acme-legal")}, 0, 5, load, 60, 65)
    assert played.told[0]["adapters"].startswith("1 #")
    assert played.told[1] == {}
    assert played.told[2]["adapters"].startswith("2 #")
    assert "acme" not in repr(played.told)
    assert [how for how, _ in played.heard] == ["about", "adapters", "adapters"]
    assert Played("vllm", {"/v1/models": models()}, 0).told == [{"adapters": "none"}]


def test_a_locked_list_is_not_asked_for_again():
    played = Played("vllm", {"/version": {"version": "1"}, "/v1/models": Reply(status=401)}, 0, 60, 120, restart, 125)
    assert played.asked == ["/version", "/v1/models", "/version", "/v1/models"]


def test_silence_is_tried_three_times_and_no_failure():
    played = Played("trtllm", {"/version": Reply(status=503)}, *range(0, 100, 5))
    assert played.asked == ["/version"] * 3
    assert played.dropped == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"17", b"<html>", b"\xff\xfe", b'{"version": {"a": 1}}', b"[" * 5000,
     b'{"version": "' + b"x" * 9000 + b'"}'],
)  # fmt: skip
def test_any_answer_is_read_or_dropped(body):
    played = Played("vllm", {"/version": Reply(body), "/v1/models": Reply(body)}, 0, 5)
    assert all(len(value) <= 256 for facts in played.told for value in facts.values())


def test_an_endless_answer_is_cut_off():
    played = Played("tgi", {"/info": Reply(b'{"version": "' + b"x" * 2_000_000)}, 0, 5)
    assert played.told == [{}, {}]


def test_engines_that_are_asked_have_a_dialect():
    assert set(ABOUT) | set(ADAPTERS) <= set(all_dialects())
