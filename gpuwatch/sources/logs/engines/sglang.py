"""SGLang's batch lines, 0.2 to 0.5.2x: one per prefill batch, one per forty decode iterations, none when idle.

The separator after `batch` changed twice, the set of fields with every release; all of them are pairs. A hybrid model
has a pool per kind of layer: the fullest one decides. `gen throughput` counts from the decode line before. Cache hit
rates are true in prefill lines only. The line "Cache not flushed …" carries the same pairs and is no stats line.
"""

from __future__ import annotations

import re

from ..found import Facts, Found, Notice, Phrase, Stats, says
from ..numbers.numbers import NUMBER, text_of
from ..numbers.pairs import PAYLOAD_CHARS, pairs

_BATCH = re.compile(r"(?:Decode|Prefill) batch(?: ?\[\d{1,12}\])?[.,] ?#")
_PERCENT = re.compile(rf"cache hit rate: ({NUMBER})%")


def _batch(text: str, at: int) -> tuple[Found, ...]:
    if not _BATCH.match(text, at):
        return ()
    said = pairs(text, at)
    prefill = text.startswith("Prefill", at)
    gauges: dict[str, float] = {}
    if "running-req" in said:
        gauges["req_running"] = said["running-req"]
    waiting, deferred = _waiting(said)
    if waiting is not None:
        gauges["req_waiting"] = waiting
    if deferred:
        gauges["req_waiting_deferred"] = deferred
    gauges |= _other_side(said)
    usages = [
        number for name, number in said.items() if name.endswith("usage") and not name.startswith("pre-allocated")
    ]
    if usages:
        gauges["kv_usage_ratio"] = min(1.0, max(usages))
    rates: dict[str, float] = {}
    for name, signal in (("gen throughput (token/s)", "generated"), ("input throughput (token/s)", "prompt")):
        if name in said:
            gauges[f"{signal}_tokens_per_second"] = said[name]
            if not prefill:
                rates[f"{signal}_tokens_total"] = said[name]
    counts = _prefilled(text, at, said, gauges) if prefill else {}
    return (Stats("sglang", gauges, rates, counts),)


def _waiting(said: dict[str, float]) -> tuple[float | None, float]:
    """Requests without KV, and those of them that wait for the other side of a disaggregated pair."""
    deferred = said.get("prealloc-req", 0.0) + said.get("transfer-req", 0.0)
    queued = said.get("queue-req")
    if queued is None:
        return None, deferred
    return queued + deferred + said.get("retracted-req", 0.0), deferred


def _other_side(said: dict[str, float]) -> dict[str, float]:
    """The queues of a disaggregated pair. A prefill engine shows what is in flight from it, or open handshakes."""
    prefills = "inflight-req" in said or "unbootstrapped-req" in said
    if not prefills and "transfer-req" not in said:
        return {}
    early = said.get("unbootstrapped-req", said.get("prealloc-req")) if prefills else said.get("prealloc-req")
    moving = said.get("inflight-req") if prefills else said["transfer-req"]
    found = {"req_waiting_bootstrap" if prefills else "req_waiting_prealloc": early, "req_transferring": moving}
    return {name: number for name, number in found.items() if number is not None}


def _prefilled(text: str, at: int, said: dict[str, float], gauges: dict[str, float]) -> dict[str, float]:
    """What a prefill batch adds: its new tokens were computed, its cached ones found."""
    percent = _PERCENT.search(text[at : at + PAYLOAD_CHARS])
    if percent and float(percent[1]) <= 100:
        gauges["prefix_hit_ratio"] = float(percent[1]) / 100
    new, cached = said.get("new-token"), said.get("cached-token")
    counts = {}
    if new is not None:
        counts["prompt_tokens_total"] = new
        if cached is not None:
            counts["prefix_query_tokens_total"] = new + cached
            counts["prefix_hit_tokens_total"] = cached
    return counts


_RATIO = re.compile(rf"#?new_token_ratio: ({NUMBER}) ?-> ?({NUMBER})")
_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,9})")
_ABORTED = re.compile(r"#aborted_retracted_reqs: (\d{1,9})")
_GAINED = re.compile(r"#new_tokens_gained: (\d{1,12})")


def _retracted(text: str, at: int) -> tuple[Found, ...]:
    """Requests taken back because the pool is full. A deliberate test of it is none."""
    if "Testing retraction" in text[:at]:
        return ()
    tail = text[at : at + 512]
    detail = {}
    patterns = (("retracted", _RETRACTED), ("aborted", _ABORTED), ("gained_tokens", _GAINED))
    for key, pattern in patterns:
        found = pattern.search(tail)
        if found:
            detail[key] = found[1]
    ratio = _RATIO.search(tail)
    if ratio:
        detail["new_token_ratio_from"], detail["new_token_ratio_to"] = (text_of(float(r)) for r in ratio.groups())
    counts = {"req_preempted_total": float(detail["retracted"])} if "retracted" in detail else {}
    notice = Notice("retraction", detail)
    return (notice, Stats("sglang", counts=counts)) if counts else (notice,)


_LIMITS = {
    "max_total_num_tokens": "kv_capacity_tokens",
    "chunked_prefill_size": "max_num_batched_tokens",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_running_requests": "max_num_seqs",
    "context_len": "max_model_len",
    "page_size": "kv_block_tokens",
}
_LIMIT = re.compile(rf"\b({'|'.join(_LIMITS)})=({NUMBER})")
_FREE = re.compile(rf"available_gpu_mem=({NUMBER}) GB")


def _limits(text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + PAYLOAD_CHARS]
    labels = {_LIMITS[name]: text_of(float(number)) for name, number in _LIMIT.findall(tail)}
    free = _FREE.search(tail)
    if free:
        labels["free_memory_bytes"] = text_of(float(free[1]) * 2**30)
    return (Facts(labels),) if len(labels) > 1 else ()


_LEAK = re.compile(r"(total|available|evictable|protected)(?:_size)?=(\d{1,15})")
_SECONDS = re.compile(rf"for last ({NUMBER}) ?s|timed out after ({NUMBER}) ?s|watchdog_timeout=({NUMBER})")
_CODE = re.compile(r"crashed with exit code (-?\d{1,5})")
_TIMES = re.compile(rf"\b(queue|forward|bootstrap|transfer)_duration=({NUMBER})ms")


def _leak(text: str, at: int) -> tuple[Found, ...]:
    return (Notice("memory_leak_detected", dict(_LEAK.findall(text[at : at + 512]))),)


def _timed(kind: str, text: str, at: int) -> tuple[Found, ...]:
    found = _SECONDS.search(text[at : at + 512])
    seconds = next((g for g in found.groups() if g), "") if found else ""
    return (Notice(kind, {"seconds": text_of(float(seconds))} if seconds else {}),)


def _transfer(text: str, at: int) -> tuple[Found, ...]:
    """A request that its client has given up is no failure of the transfer."""
    tail = text[at : at + 512]
    if "Aborted by AbortReq" in tail:
        return (Notice("aborted"),)
    timed_out = "timed out" in tail
    return _timed("transfer_timeout" if timed_out else "transfer_failed", text, at)


def _crashed(text: str, at: int) -> tuple[Found, ...]:
    found = _CODE.match(text, at)
    return (Notice("process_crashed", {"code": found[1]}),) if found else ()


def _request_times(text: str, at: int) -> tuple[Found, ...]:
    times = {f"{name}_seconds": text_of(float(ms) / 1000) for name, ms in _TIMES.findall(text[at : at + 1024])}
    if "forward_seconds" in times:
        times["inference_seconds"] = times.pop("forward_seconds")
    return (Notice("request", times),) if times else ()


PHRASES = (
    Phrase("Decode batch", "sglang", _batch),
    Phrase("Prefill batch", "sglang", _batch),
    Phrase("KV cache pool is full. Retract requests.", "sglang", _retracted),
    Phrase("Decode out of memory happened. #retracted_reqs", "sglang", _retracted),
    Phrase("max_total_num_tokens=", "sglang", _limits),
    Phrase("memory leak detected!", "sglang", _leak),
    Phrase("Received output for rid=", "sglang", says("orphan_output")),
    Phrase("Prefill out of memory. Try to lower", "sglang", says("out_of_memory", phase="prefill")),
    Phrase("Decode out of memory. Try to lower", "sglang", says("out_of_memory", phase="decode")),
    Phrase("atchdog timeout (self.watchdog_timeout", "sglang", lambda text, at: _timed("watchdog_timeout", text, at)),
    Phrase("The request queue is full.", "", says("queue_full")),
    Phrase("Request waiting timeout reached.", "sglang", says("queue_timeout")),
    Phrase("Health check failed. Server couldn't", "sglang", lambda text, at: _timed("health_failed", text, at)),
    Phrase("Decode transfer failed for request", "sglang", _transfer),
    Phrase("Prefill transfer failed for request", "sglang", _transfer),
    Phrase("Prefill bootstrap failed for request", "sglang", _transfer),
    Phrase("Decode handshake failed for request", "sglang", _transfer),
    Phrase("Unexpected transfer worker error for room", "sglang", says("transfer_failed")),
    Phrase("Some requests fail to receive KV Cache transfer done signal", "sglang", says("transfer_timeout")),
    Phrase("Some requests timed out when bootstrapping", "sglang", says("transfer_timeout")),
    Phrase("crashed with exit code ", "sglang", _crashed),
    Phrase("queue_duration=", "sglang", _request_times),
)
