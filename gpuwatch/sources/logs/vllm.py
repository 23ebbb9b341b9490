"""vLLM's periodic line, V0 and V1 and the Rust front end alike: pairs of a name and a number, in whatever order.

V0 says Pending and Swapped, prints every five or ten seconds even when idle, and its CPU cache usage marks it. V1 says
Waiting (which includes Deferred) and falls silent when nothing moves. Unknown pairs, as builds of vendors insert
them, are read over. Percentages become ratios.
"""

from __future__ import annotations

import re

from .found import Found, Notice, Phrase, Stats
from .numbers import NUMBER, text_of

_PAIR = re.compile(rf"([A-Za-z][A-Za-z /\-]{{0,47}}?) ?: ?({NUMBER})(?![\d])")
_ENGINE = re.compile(r"Engine (\d{1,4}): ?$")
_PAYLOAD_CHARS = 2048
_NAMES = {
    "avg prompt throughput": "prompt_rate",
    "avg prompt tput": "prompt_rate",
    "avg generation throughput": "generation_rate",
    "avg generation tput": "generation_rate",
    "running": "running",
    "reqs running": "running",
    "waiting": "waiting",
    "pending": "pending",
    "swapped": "swapped",
    "deferred": "deferred",
    "preemptions": "preemptions",
    "gpu kv cache usage": "kv_percent",
    "gpu kv cache used": "kv_percent",
    "cpu kv cache usage": "cpu_kv_percent",
    "prefix cache hit rate": "hit_percent",
}


def _stats(text: str, at: int) -> tuple[Found, ...]:
    said = {
        _NAMES[key]: float(number)
        for name, number in _PAIR.findall(text[at : at + _PAYLOAD_CHARS])
        if (key := name.strip().lower()) in _NAMES
    }
    if len(said) < 2:
        return ()
    is_v0 = "pending" in said or "swapped" in said or "cpu_kv_percent" in said
    gauges = _gauges(said)
    rates = {}
    for name, signal in (("prompt_rate", "prompt"), ("generation_rate", "generated")):
        if name in said:
            gauges[f"{signal}_tokens_per_second"] = said[name]
            rates[f"{signal}_tokens_total"] = said[name]
    counts = {"req_preempted_total": said["preemptions"]} if "preemptions" in said else {}
    named = _ENGINE.search(text[max(0, at - 16) : at])
    rank = int(named[1]) if named else None
    return (Stats("vllm_v0" if is_v0 else "vllm_v1", gauges, rates, counts, rank=rank),)


def _gauges(said: dict[str, float]) -> dict[str, float]:
    gauges: dict[str, float] = {}
    if "running" in said:
        gauges["req_running"] = said["running"]
    if "waiting" in said:
        gauges["req_waiting"] = said["waiting"]
        if "deferred" in said:
            gauges["req_waiting_deferred"] = said["deferred"]
            gauges["req_waiting_capacity"] = max(0.0, said["waiting"] - said["deferred"])
    elif "pending" in said:
        gauges["req_waiting"] = said["pending"] + said.get("swapped", 0.0)
    for name, signal in (("kv_percent", "kv_usage_ratio"), ("hit_percent", "prefix_hit_ratio")):
        if name in said and said[name] <= 100.0001:
            gauges[signal] = min(said[name] / 100, 1.0)
    return gauges


_V0_HITS = re.compile(rf"Prefix cache hit rate: GPU: ({NUMBER})%")
_PREEMPTED = re.compile(r"PreemptionMode\.(RECOMPUTE|SWAP)")
_PREEMPTED_SO_FAR = re.compile(r"total(?:_num)?_cumulative_preemption(?:_cnt)?=(\d{1,12})")


def _v0_hits(text: str, at: int) -> tuple[Found, ...]:
    found = _V0_HITS.match(text, at)
    if not found or float(found[1]) > 100:
        return ()
    return (Stats("vllm_v0", {"prefix_hit_ratio": float(found[1]) / 100}),)


def _preempted(text: str, at: int) -> tuple[Found, ...]:
    """V0 prints every fiftieth of its preemptions, with their number so far."""
    tail = text[at : at + _PAYLOAD_CHARS]
    detail = {}
    mode = _PREEMPTED.search(tail)
    if mode:
        detail["mode"] = mode[1].lower()
    total = _PREEMPTED_SO_FAR.search(tail)
    if not total:
        return (Notice("preemption", detail),)
    number = float(total[1])
    stats = Stats("vllm_v0", totals={"req_preempted_total": number})
    return Notice("preemption", {**detail, "total": text_of(number)}), stats


PHRASES = (
    Phrase("Avg prompt throughput:", "vllm", _stats),
    Phrase("Avg prompt tput:", "vllm", _stats),
    Phrase("Prefix cache hit rate: GPU:", "vllm", _v0_hits),
    Phrase("is preempted by PreemptionMode.", "vllm", _preempted),
)
