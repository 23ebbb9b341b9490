"""TensorRT-LLM: the iteration log of the PyTorch executor, whatever its fields, and the C++ runtime's JSON lines.

One line per iteration, none when idle. `prev_device_step_time` is that of the iteration before and holds the idle time
after a pause: only the host's time counts as the step's. The requests "total" are those fetched since the start, and are
counted under attention parallelism only.
"""

from __future__ import annotations

import re

from ..found import Facts, Found, Notice, Phrase, Stats, known, says
from ..numbers.numbers import NUMBER, text_of
from ..numbers.pairs import pairs

_ITER = re.compile(r"\biter = \d")
_FETCHED = re.compile(r"currank_total_requests = (\d{1,12})/(\d{1,12})")
_SECONDS = re.compile(rf"\b(host_step_time|elapsed_time|prev_device_step_time) = ({NUMBER}) ?(ms|s)\b")
_JSON_PAIR = re.compile(rf'\\?"([A-Za-z][A-Za-z ]{{1,48}})\\?": ?({NUMBER})')
_BACK_CHARS = 200


def _iteration(text: str, at: int) -> tuple[Found, ...]:
    began = _ITER.search(text, max(0, at - _BACK_CHARS), at)
    if not began:
        return ()
    at = began.start()
    said = pairs(text, at)
    times = {name: float(n) / (1000 if unit == "ms" else 1) for name, n, unit in _SECONDS.findall(text[at : at + 1024])}
    seconds = times.get("host_step_time", times.get("elapsed_time"))
    context, generated = said.get("num_ctx_tokens"), said.get("num_generation_tokens")
    now = known(
        step_seconds=seconds,
        step_prefill_tokens=context,
        step_decode_tokens=generated,
        req_running=said.get("num_scheduled_requests"),
        req_waiting=said.get("num_unscheduled"),
        kv_usage_ratio=said.get("kv_cache_util"),
    )
    totals = {"steps_total": said["iter"]} if "iter" in said else {}
    fetched = _FETCHED.search(text, at, at + 1024)
    if fetched and int(fetched[2]) > 0:
        totals["req_arrived_total"] = float(fetched[1])
    counts = known(prompt_tokens_total=context, generated_tokens_total=generated)
    rank = said.get("rank")
    stats = Stats(
        "trtllm", momentary=now, counts=counts, totals=totals, took_s=seconds or 0.0,
        rank=int(rank) if rank is not None and rank < 1e4 else None,
    )  # fmt: skip
    return (stats, Notice("step", _detail(times, said), rank=stats.rank)) if seconds is not None else (stats,)


def _detail(times: dict[str, float], said: dict[str, float]) -> dict[str, str]:
    detail = {"seconds": text_of(times.get("host_step_time", times.get("elapsed_time", 0.0)))}
    for key, name in (
        ("context_tokens", "num_ctx_tokens"),
        ("generation_tokens", "num_generation_tokens"),
        ("context_requests", "num_ctx_requests"),
        ("scheduled_requests", "num_scheduled_requests"),
        ("unscheduled_requests", "num_unscheduled"),
    ):
        if name in said:
            detail[key] = text_of(said[name])
    return detail


def _json(text: str, at: int) -> tuple[Found, ...]:
    """The C++ runtime's line: requests, blocks and the iteration counter. Triton quotes it, with its quotes escaped."""
    said = {name: float(number) for name, number in _JSON_PAIR.findall(text[max(0, at - 512) : at + 2048])}
    active, scheduled = said.get("Active Request Count"), said.get("Scheduled Requests")
    used, blocks = said.get("Used KV cache blocks"), said.get("Max KV cache blocks")
    now = known(
        req_running=scheduled,
        req_waiting=max(0.0, active - scheduled) if active is not None and scheduled is not None else None,
        kv_used_blocks=used,
        kv_total_blocks=blocks,
        kv_usage_ratio=used / blocks if used is not None and blocks else None,
        step_prefill_tokens=said.get("Total Context Tokens"),
        step_decode_tokens=said.get("Generation Requests"),
    )
    totals = {"steps_total": said["Iteration Counter"]} if "Iteration Counter" in said else {}
    found: list[Found] = [Stats("trtllm", momentary=now, totals=totals)]
    labels = {
        ours: text_of(said[theirs])
        for theirs, ours in (("Max Request Count", "max_num_seqs"), ("Tokens per KV cache block", "kv_block_tokens"))
        if theirs in said
    }
    return (*found, Facts(labels)) if labels else tuple(found)


_DUMMY = re.compile(r"num_fetch_requests ?= ?(\d{1,12}), num_schedulable_requests ?= ?(\d{1,12})")


def _dummy(text: str, at: int) -> tuple[Found, ...]:
    found = _DUMMY.search(text, at, at + 300)
    return (Notice("dummy_skipped", {"fetch": found[1], "schedulable": found[2]}),) if found else ()


PHRASES = (
    Phrase("global_rank = ", "trtllm", _iteration),
    Phrase('"Active Request Count', "trtllm", _json),
    Phrase("Skipped adding dummy requests:", "trtllm", _dummy),
    Phrase("is disconnected, abort", "trtllm", says("client_disconnected")),
    Phrase("Can not find sequence for request", "trtllm", says("sequence_not_found")),
)
