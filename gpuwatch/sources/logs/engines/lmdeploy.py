"""LMDeploy's periodic line, which goes to standard output: throughput, requests of server and engine, KV cache."""

from __future__ import annotations

import re

from ..found import Found, Phrase, Stats
from ..numbers.numbers import NUMBER
from ..numbers.pairs import pairs

_RATES = re.compile(rf"Avg thr \(in/out\): ({NUMBER}) / ({NUMBER}) tokens/s")
_SERVER = re.compile(r"Server \(succeeded/failed/routed/waiting\): (\d{1,12}) / (\d{1,12}) / (\d{1,12}) / (\d{1,12})")
_ENGINE = re.compile(r"Engine \(running/waiting\): (\d{1,9}) / (\d{1,9})")


def _stats(text: str, at: int) -> tuple[Found, ...]:
    rates = _RATES.match(text, at)
    if not rates:
        return ()
    tail = text[at : at + 2048]
    gauges = {"prompt_tokens_per_second": float(rates[1]), "generated_tokens_per_second": float(rates[2])}
    engine, server = _ENGINE.search(tail), _SERVER.search(tail)
    totals = {}
    if engine:
        gauges["req_running"] = float(engine[1])
        gauges["req_waiting"] = float(engine[2]) + (float(server[4]) if server else 0.0)
    if server:
        totals["req_finished_total"] = float(server[1])
    said = pairs(tail)
    for name, signal in (("kv cache", "kv_usage_ratio"), ("prefix cache hit rate", "prefix_hit_ratio")):
        if name in said and 0 <= said[name] <= 100.0001:
            gauges[signal] = min(said[name] / 100, 1.0)
    per_second = {"prompt_tokens_total": float(rates[1]), "generated_tokens_total": float(rates[2])}
    return (Stats("lmdeploy", gauges, per_second, totals=totals),)


PHRASES = (Phrase("Avg thr (in/out):", "lmdeploy", _stats),)
