"""Long-context KV pressure: a few long requests hold the KV pool, and nothing that waits would fit in what is left.

Mechanism. The pool is full of few, long contexts. The batch is small for its KV, the queue waits for capacity, and no
order of service would help: what waits does not fit, whoever goes first. It clears when some of the long requests end.

Blind spots. Without the live request table, "few and long" is read from tokens per running request against the usual; the
holders cannot be named. Engines that count evictable cache as used overstate the pressure.

Told apart from: overload (requests of the usual length fill the pool or the batch), batch_thrashing and
head_of_line_blocking (requests that would fit are held up), preemption_storm (many preemptions).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from ..memory.view import Window
from ..model import Advice, Evidence, Finding, Missing
from ..questions.culprits import holders
from ..questions.demand import fit, fit_minute, load_factors
from ..questions.queue import began_at, queue
from ..questions.ruled_out import not_hang, not_preemption_storm, not_throttling, not_traffic_surge
from . import Rule

SPAN_S = 30.0
SLOW_LOOKS = 6
"""Looks that must agree where they are slow: between fewer, a batch that drains and refills can hide."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits; the first two are the definition of the class."""

    long_share: float = 0.5  # of the held KV, in requests of at least 8 × the median length
    fit_share: float = 0.2  # at most so much of the waiting time had a request that would fit
    kv_usage_ratio: float = 0.85  # mean use of the pool
    tokens_per_request_ratio: float = 2.0  # without a live table: KV per running request against the usual
    waiting_s: float = 5.0  # so much of the span requests waited


def check(w: Window, p: Params) -> Finding | None:
    """A full pool, held by few, with a queue in which nobody would fit."""
    span_s = w.span_of("kv_usage_ratio", SPAN_S, SLOW_LOOKS)
    waiting = w.series("req_waiting", span_s, thin=0.3)
    if float((waiting > 0).sum()) < p.waiting_s * span_s / SPAN_S:
        return None
    usage = w.mean("kv_usage_ratio", span_s)
    fitting = w.once(fit_minute) if span_s <= 60 else fit(w, span_s)
    allowed = p.fit_share if span_s == SPAN_S else p.fit_share / 2  # of few looks not one may have seen room
    if usage < p.kv_usage_ratio or fitting.share > allowed:
        return None
    held, named = _held_by_long(w, p, span_s)
    if not named:
        return None
    factors = w.maybe(load_factors)
    return Finding(
        rule="long_context_kv_pressure",
        subject=w.subject,
        confidence=0.85 if w.has("waiting_fit") else 0.65,
        summary=(
            f"A few long requests hold the KV pool ({usage:.0%} in use): {w.level('req_running'):.0f} run, "
            f"{w.level('req_waiting'):.0f} wait, and none of those would fit."
        ),
        onset_at=_onset(w, p),
        mechanism="long_holders",
        evidence=(
            *held,
            w.evidence("kv_usage_ratio, mean", usage, p.kv_usage_ratio, ">=", span_s),
            w.evidence(f"waiting time with free room ({fitting.witness})", fitting.share, p.fit_share, "<=", 60),
            w.evidence("req_waiting", w.once(queue).waiting, 0.0, ">", 5),
            w.evidence("load factor of the KV pool", factors.kv if factors else None, 1.0, ">=", 120),
        ),
        ruled_out=(not_traffic_surge(w), not_preemption_storm(w), not_hang(w), not_throttling(w)),
        culprits=holders(w, 5),
    )


def _held_by_long(w: Window, p: Params, span_s: float) -> tuple[tuple[Evidence, ...], bool]:
    try:
        share = w.mean("kv_long_share_ratio", SPAN_S)
        return (
            (w.evidence("KV held by long requests", share, p.long_share, ">=", SPAN_S),),
            share >= p.long_share,
        )
    except Missing:
        usual = w.baseline.usual("kv_per_request_ratio")
        if usual is None:
            raise
        now = w.mean("kv_usage_ratio", span_s) / max(1.0, w.mean("req_running", span_s))
        row = w.evidence("KV per running request", now, p.tokens_per_request_ratio * usual, ">=", span_s)
        return (row,), now >= p.tokens_per_request_ratio * usual


def _onset(w: Window, p: Params) -> float:
    """When the pool became full for good, no earlier than the queue."""
    try:
        queue_at = began_at(w)
    except Missing:
        queue_at = w.now
    usage = w.series("kv_usage_ratio", 300.0, thin=0.0)
    free = np.flatnonzero(usage < p.kv_usage_ratio - 0.15)
    full_at = math.floor(w.now) - 300 + (int(free[-1]) + 1 if len(free) else 0)
    return max(queue_at, float(full_at)) if queue_at < w.now else float(full_at)


RULE = Rule(
    stem="long_context_kv_pressure",
    family="kv_admission",
    title="Long-context KV pressure",
    check=check,
    params=Params,
    needs=("kv_usage_ratio", "req_waiting", "req_running"),
    opens_eyes="let the agent read the engine's step ring (GPUWATCH_RING_DIR): it shows who holds the cache",
    for_s=5,
    resolve_s=30,
    severity="page",
    action="limit_client",
    advice=(
        Advice(
            do="Limit how many long requests are in flight, or send them to a pool of their own.",
            knob="gateway: concurrency of long prompts; route by prompt tokens",
            applies="runtime",
            takes_s=60,
            costs="long requests wait at the gateway",
            verify="gpuwatch_kv_long_share_ratio falls below 0.5 and gpuwatch_req_waiting drains",
            undo="remove the limit",
        ),
        Advice(
            do="Lower max_tokens for the clients that hold the pool, so that their requests end sooner.",
            knob="gateway: max_tokens of the named tenants",
            applies="runtime",
            takes_s=120,
            costs="long answers are cut",
            verify="gpuwatch_kv_usage_ratio falls",
            undo="restore the limit",
        ),
        Advice(
            do="Enlarge the pool: 8-bit KV, more memory for it, or more tensor parallelism for this model.",
            knob="vLLM: --kv-cache-dtype fp8, --gpu-memory-utilization; SGLang: --kv-cache-dtype, --mem-fraction-static",
            applies="restart",
            takes_s=300,
            costs="a restart; 8-bit KV costs a little accuracy",
            verify="kv_capacity_tokens is larger, gpuwatch_kv_usage_ratio stays below 0.9",
            undo="start with the old arguments",
        ),
    ),
    not_now=(
        "Do not raise max_num_seqs: the pool is full, not the batch.",
        "Do not restart: the long requests start again and everyone else loses their place.",
    ),
    explains=("overload",),
    tell_apart=("overload", "batch_thrashing", "head_of_line_blocking", "preemption_storm", "length_shift"),
)
