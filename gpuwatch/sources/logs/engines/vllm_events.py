"""vLLM's other lines that carry numbers: speculation, single iterations, preemptions, transfers, the workers' mailbox."""

from __future__ import annotations

import re

from ..found import Found, Notice, Phrase, Stats, says
from ..numbers.numbers import NUMBER, text_of
from ..numbers.pairs import pairs

_PREEMPTED = re.compile(r"PreemptionMode\.(RECOMPUTE|SWAP)")
_PREEMPTED_SO_FAR = re.compile(r"total(?:_num)?_cumulative_preemption(?:_cnt)?=(\d{1,12})")
_V0_HITS = re.compile(rf"Prefix cache hit rate: GPU: ({NUMBER})%")
_ITERATION = re.compile(
    rf"Iteration\((\d{{1,15}})\): (\d{{1,9}}) context requests, (\d{{1,9}}) context tokens, (\d{{1,9}}) generation requests, "
    rf"(\d{{1,9}}) generation tokens, iteration elapsed time: ({NUMBER}) ms"
)
_MAILBOX = re.compile(rf"No available (?:shared memory broadcast )?block found in ({NUMBER}) second")
_WITHIN = re.compile(rf"within ({NUMBER}) seconds")
_TRANSFER_SPEED = re.compile(rf"Throughput \(MB/s\)=({NUMBER})")
_TRANSFERS_FAILED = re.compile(r"Num failed transfers=(\d{1,12})")
_LOST = re.compile(r"Preempting request .{1,200}?(\d{1,9}) computed tokens lost")


def _v0_hits(text: str, at: int) -> tuple[Found, ...]:
    found = _V0_HITS.match(text, at)
    if not found or float(found[1]) > 100:
        return ()
    return (Stats("vllm_v0", {"prefix_hit_ratio": float(found[1]) / 100}),)


def _preempted(text: str, at: int) -> tuple[Found, ...]:
    """V0 prints every fiftieth of its preemptions, with their number so far."""
    tail = text[at : at + 1024]
    mode, total = _PREEMPTED.search(tail), _PREEMPTED_SO_FAR.search(tail)
    detail = {"mode": mode[1].lower()} if mode else {}
    if not total:
        return (Notice("preemption", detail),)
    number = float(total[1])
    stats = Stats("vllm_v0", totals={"req_preempted_total": number})
    return Notice("preemption", {**detail, "total": text_of(number)}), stats


def _preempting(text: str, at: int) -> tuple[Found, ...]:
    found = _LOST.match(text, at, at + 400)
    return (Notice("preemption", {"mode": "recompute", "lost_tokens": found[1]}),) if found else ()


def speculation(text: str, at: int) -> tuple[Found, ...]:
    """Lines of all versions. The older one gives the rate as a ratio, the newer ones as a percentage."""
    said = pairs(text, at)
    rate = said.get("avg draft acceptance rate", said.get("draft acceptance rate"))
    accepted = said.get("accepted", said.get("number of accepted tokens"))
    drafted = said.get("drafted", said.get("number of draft tokens"))
    detail = {}
    for key, number in (
        ("mean_acceptance_length", said.get("mean acceptance length")),
        ("accepted", accepted),
        ("drafted", drafted),
    ):
        if number is not None:
            detail[key] = text_of(number)
    if accepted is not None and drafted:
        detail["acceptance_ratio"] = text_of(min(1.0, accepted / drafted))
    elif rate is not None and 0 <= rate <= 100:
        detail["acceptance_ratio"] = text_of(rate / 100 if "%" in text[at : at + 1024] else min(rate, 1.0))
    return (Notice("spec_decode", detail),) if detail else ()


def _iteration(text: str, at: int) -> tuple[Found, ...]:
    found = _ITERATION.match(text, at)
    if not found:
        return ()
    number, context_requests, context, generation_requests, generation, ms = (float(g) for g in found.groups())
    seconds = ms / 1000
    gauges = {"step_seconds": seconds, "step_prefill_tokens": context, "step_decode_tokens": generation}
    detail = {
        "seconds": text_of(seconds),
        "context_tokens": text_of(context),
        "generation_tokens": text_of(generation),
        "context_requests": text_of(context_requests),
        "generation_requests": text_of(generation_requests),
    }
    return Stats("vllm_v1", momentary=gauges, totals={"steps_total": number}), Notice("step", detail)


def _mailbox(text: str, at: int) -> tuple[Found, ...]:
    found = _MAILBOX.search(text[at : at + 300])
    return (Notice("broadcast_block_wait", {"seconds": text_of(float(found[1]))}),) if found else ()


def _pulling(text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + 4096]
    if "failed" not in tail:
        return ()
    return (Notice("transfer_timeout" if "Timeout" in tail else "transfer_failed"),)


def _expired(text: str, at: int) -> tuple[Found, ...]:
    """The prefill side keeps what nobody fetched, and lets it go after a time."""
    within = _WITHIN.search(text[at : at + 400])
    return (Notice("transfer_timeout", {"seconds": text_of(float(within[1]))} if within else {}),)


def _transfers(text: str, at: int) -> tuple[Found, ...]:
    """The interval's summary of a disaggregated pair: how fast KV came, and how many transfers failed."""
    tail = text[at : at + 1024]
    speed, failed = _TRANSFER_SPEED.search(tail), _TRANSFERS_FAILED.search(tail)
    gauges = {"kv_transfer_bytes_per_second": float(speed[1]) * 2**20} if speed else {}
    number = float(failed[1]) if failed else 0.0
    found: tuple[Found, ...] = (Stats("vllm_v1", momentary=gauges, counts={"kv_transfer_failed_total": number}),)
    return (*found, Notice("transfer_failed", {"count": text_of(number)})) if number else found


def _aborted(text: str, at: int) -> tuple[Found, ...]:
    return (Notice("aborted"),)


PHRASES = (
    Phrase("Prefix cache hit rate: GPU:", "vllm", _v0_hits),
    Phrase("is preempted by PreemptionMode.", "vllm", _preempted),
    Phrase("Preempting request ", "vllm", _preempting),
    Phrase("SpecDecoding metrics:", "", speculation),
    Phrase("Speculative metrics:", "vllm", speculation),
    Phrase("Iteration(", "vllm", _iteration),
    Phrase("No available shared memory broadcast block found", "", _mailbox),
    Phrase("No available block found in ", "", _mailbox),
    Phrase("pulling kv_caches for ", "vllm", _pulling),
    Phrase("KV Transfer metrics: ", "vllm", _transfers),
    Phrase("Releasing expired KV blocks for request", "vllm", _expired),
    Phrase("NIXL transfer failure", "vllm", says("transfer_failed")),
    Phrase("Encountering exception in KV receiving thread", "vllm", says("transfer_failed")),
    Phrase("Aborted request", "vllm", _aborted),
)
