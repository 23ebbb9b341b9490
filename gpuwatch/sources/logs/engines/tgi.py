"""TGI's line per request, as text and as JSON: its times as Rust writes durations, and what they add up to.

There is no periodic line, so nothing is known of what runs or waits; a queue shows in the requests that have left it.
Time per token is the mean of one request; output tokens follow from it and the inference time.
"""

from __future__ import annotations

import re

from ..found import Facts, Found, Notice, Observed, Phrase, Reader, Stats, says
from ..numbers.numbers import NUMBER, duration_s, text_of

_TIME = re.compile(
    rf'"?\b(total_time|validation_time|queue_time|inference_time|time_per_token)"?[=:] ?"((?:{NUMBER}(?:ns|µs|μs|us|ms|s|m|h))'
    rf'{{1,4}})"'
)
_REACH_CHARS = 4096
_BATCH = re.compile(r"batch\{batch_size=(\d{1,9})\}")


def _request(text: str, at: int) -> tuple[Found, ...]:
    """A finished request. The phrase stands in the middle of the fields: looked for around it, parameters are before."""
    times = {
        name: seconds
        for name, written in _TIME.findall(text[max(0, at - _REACH_CHARS) : at + _REACH_CHARS])
        if (seconds := duration_s(written)) is not None
    }
    detail = {
        f"{name.removesuffix('_time')}_seconds": text_of(times[name]) for name in times if name != "time_per_token"
    }
    if "time_per_token" in times:
        detail["token_seconds"] = text_of(times["time_per_token"])
    counts = {"req_finished_total": 1.0}
    if times.get("time_per_token", 0.0) > 0 and "inference_time" in times:
        counts["generated_tokens_total"] = float(round(times["inference_time"] / times["time_per_token"]))
    names = {"total_time": "e2e_seconds", "queue_time": "queue_seconds", "time_per_token": "tpot_seconds"}
    observed = Observed({ours: times[theirs] for theirs, ours in names.items() if theirs in times})
    found: list[Found] = [Stats("tgi", counts=counts), observed, Notice("request", detail)]
    if "grammar: Some(" in text or '"grammar"' in text:
        found.append(
            Notice("grammar", {k: v for k, v in detail.items() if k in ("queue_seconds", "validation_seconds")})
        )
    return tuple(found)


def _failed(text: str, at: int) -> tuple[Found, ...]:
    batch = _BATCH.search(text[:_REACH_CHARS])
    return (Notice("request_failed", {"batch_size": batch[1]} if batch else {}),)


_POOL = (
    ("kv_total_blocks", re.compile(r"KV-cache blocks: (\d{1,12})")),
    ("kv_block_tokens", re.compile(r", size: (\d{1,9})")),
)
_LIMITS = (
    ("KV-cache blocks: ", _POOL),
    ("Setting max batch total tokens to ", (("kv_capacity_tokens", re.compile(r"total tokens to (\d{1,12})")),)),
    ("Maximum total tokens defaulted to ", (("max_model_len", re.compile(r"defaulted to (\d{1,12})")),)),
)


def _limits(patterns: tuple[tuple[str, re.Pattern[str]], ...]) -> Reader:
    """What the server says of its pool and its limits when it starts."""

    def read(text: str, at: int) -> tuple[Found, ...]:
        found = {label: match[1] for label, pattern in patterns if (match := pattern.search(text, at, at + 120))}
        return (Facts(found),) if found else ()

    return read


PHRASES = (
    *(Phrase(literal, "tgi", _limits(patterns)) for literal, patterns in _LIMITS),
    Phrase("queue_time=", "tgi", _request),
    Phrase('"queue_time":', "tgi", _request),
    Phrase("Request failed during generation:", "tgi", _failed),
    Phrase("Waiting for shard to be ready", "tgi", says("start_waits")),
    Phrase("Model is overloaded", "tgi", says("queue_full")),
)
