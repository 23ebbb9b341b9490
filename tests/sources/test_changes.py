"""Changes: what differs is an event, what was secret is never kept."""

import asyncio
import os
import subprocess
import sys

import pytest

from gpuwatch.model import Info, Subject
from gpuwatch.sources.changes.arguments import argument_facts
from gpuwatch.sources.changes.secrets import looks_secret, safe_text
from gpuwatch.sources.changes.source import ChangesSource
from gpuwatch.sources.facts import canonical_facts

HERE, ENGINE = Subject(host="here"), Subject(engine="e")


def poll(source, now=1.0):
    return asyncio.run(source.poll(now))


def seen(source, *labels):
    """Events after each of a row of infos."""
    found = []
    for at, each in enumerate(labels):
        source.saw(Info(ENGINE, float(at), each))
        found.append([(e.what, e.detail) for e in poll(source).events])
    return found


def test_version_model_and_arguments_that_move_are_one_event_each_and_the_first_sight_is_none():
    base = {"version": "0.1", "model": "m", "arg_max_num_seqs": "64", "pid": "1"}
    first, same, version, arguments, both = seen(
        ChangesSource(HERE),
        base,
        {**base, "pid": "2"},
        {**base, "version": "0.2"},
        {**base, "version": "0.2", "arg_max_num_seqs": "32", "arg_new": "1"},
        {**base, "version": "0.3", "model": "n", "arg_max_num_seqs": "32", "arg_new": "1"},
    )
    assert (first, same) == ([], [])
    assert version == [("version", {"version": "0.1 → 0.2"})]
    assert arguments == [("arguments", {"arg_max_num_seqs": "64 → 32", "arg_new": "– → 1"})]
    assert [what for what, _ in both] == ["version", "change"]


def test_an_announcement_is_an_event_and_its_text_is_cut_and_cleaned():
    source = ChangesSource(HERE)
    source.announce(ENGINE, 5.0, "change", {"what": "image ghcr", "url": "https://me:pw@host/x", "long": "y" * 9999})
    (event,) = poll(source).events
    assert (event.subject, event.at, event.what) == (ENGINE, 5.0, "change")
    assert event.detail["url"] == "https://<hidden>@host/x"
    assert len(event.detail["long"]) == 256
    with pytest.raises(ValueError, match="is none of"):
        source.announce(ENGINE, 5.0, "party", {})


def test_a_flood_of_announcements_is_bounded_and_counted():
    source = ChangesSource(HERE)
    for i in range(500):
        source.announce(ENGINE, float(i), "change", {})
    batch = poll(source)
    assert (len(batch.events), batch.dropped) == (200, 300)
    assert poll(source).dropped == 0


def test_a_command_line_is_read_once_a_process_and_compared_with_the_last_ones():
    script = "import sys; print('up', flush=True); sys.stdin.readline()"
    pids = {}
    source = ChangesSource(HERE, lambda: pids)
    found = []
    for size in ("64", "32"):
        words = [sys.executable, "-c", script, "--max-num-seqs", size, "--api-key", "sk-verysecretvalue"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            pids[ENGINE] = process.pid
            found.append((poll(source), poll(source)))
            process.communicate(b"\n")
    (first, again), (second, _) = found
    assert first.info[0].labels["arg_max_num_seqs"] == "64"
    assert again.info == ()
    assert [(e.what, e.detail) for e in second.events] == [
        ("restart", {"how": "a new process"}),
        ("arguments", {"arg_max_num_seqs": "64 → 32"}),
    ]
    assert "secret" not in repr(found)


def test_a_process_that_is_gone_says_nothing():
    source = ChangesSource(HERE, lambda: {ENGINE: 2**22 + os.getpid() % 1000})
    assert poll(source).info == ()


@pytest.mark.parametrize(
    "key",
    ["--api-key", "api_key", "hf_token", "arg_hf_token", "password", "db-password", "secret", "auth", "bearer", "token",
     "aws_secret", "client_credentials"],
)  # fmt: skip
def test_keys_of_secrets_are_known(key):
    assert looks_secret(key)


@pytest.mark.parametrize(
    "key",
    ["max_tokens", "arg_max_num_batched_tokens", "kv_capacity_tokens", "block_tokens", "kv_block_tokens", "model",
     "kv_cache_size_tokens", "arg_chunk_tokens", "tokenizer", "author", "arg_kv_pool_tokens", "arg_max_chunk_tokens"],
)  # fmt: skip
def test_sizes_are_no_secrets(key):
    assert not looks_secret(key)


def test_arguments_are_facts_and_bare_words_are_not():
    command = [
        "vllm", "serve", "my/model", "--port", "8000", "--enable-prefix-caching", "--api-key=abc", "--seed", "-1",
        "--hf-token", "hf_abcdefghijkl", "--otlp-traces-endpoint", "http://u:p@host:4317", "--note", "sk-abcdefghijkl",
    ]  # fmt: skip
    assert argument_facts(command) == {
        "arg_port": "8000", "arg_enable_prefix_caching": "true", "arg_api_key": "<hidden>", "arg_seed": "-1",
        "arg_hf_token": "<hidden>", "arg_otlp_traces_endpoint": "http://<hidden>@host:4317", "arg_note": "<hidden>",
    }  # fmt: skip
    assert len(argument_facts(["x", *(f"--a{i}" for i in range(500))])) == 64
    assert safe_text("eyJhbGciOiJIUzI1NiJ9.x") == "<hidden>"


def test_facts_are_bounded_renamed_and_completed():
    facts, cut = canonical_facts({"block_size": 16, "kv_total_blocks_all_ranks": "200", "a": "x" * 999, "b": None}, 2)
    assert facts == {"kv_block_tokens": "16", "kv_total_blocks": "100", "kv_capacity_tokens": "1600", "a": "x" * 256}
    assert cut == 1
    many, cut = canonical_facts({f"k{i}": "v" for i in range(500)})
    assert (len(many), cut) == (64, 436)
