"""vLLM's periodic line, V0 and V1 and the Rust front end alike: pairs of a name and a number, in whatever order.

V0 says Pending and Swapped, prints every five or ten seconds even when idle, and its CPU cache usage marks it. V1 says
Waiting (which includes Deferred) and falls silent when nothing moves. Unknown pairs, as builds of vendors insert
them, are read over. Percentages become ratios.
"""

from __future__ import annotations

import re

from ..found import Found, Phrase, Stats
from ..numbers.pairs import pairs

_ENGINE = re.compile(r"Engine (\d{1,4}): ?$")
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
    # V1 names the device that it runs on.
    "xpu kv cache usage": "kv_percent",
    "tpu kv cache usage": "kv_percent",
    "hpu kv cache usage": "kv_percent",
    "npu kv cache usage": "kv_percent",
    "prefix cache hit rate": "hit_percent",
}


def _stats(text: str, at: int) -> tuple[Found, ...]:
    said = {_NAMES[name]: number for name, number in pairs(text, at).items() if name in _NAMES and number >= 0}
    if len(said) < 2:
        return ()
    is_v0 = "pending" in said or "swapped" in said
    if not is_v0 and "cpu_kv_percent" in said:  # V1 on a CPU; V0 always prints it, beside the GPU's
        said.setdefault("kv_percent", said["cpu_kv_percent"])
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


PHRASES = (
    Phrase("Avg prompt throughput:", "vllm", _stats),
    Phrase("Avg prompt tput:", "vllm", _stats),
)
