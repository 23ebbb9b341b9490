"""Head-of-line blocking: one request holds up others that could be served.

Mechanism. (a) Admission: under FIFO the head of the queue needs more KV than is free, and those behind it that would fit
wait with it. (b) Compute: one prompt's prefill occupies the steps, so that nobody else gets a token or a place.

Blind spots. Without the ring the head is not seen: free cache with a queue and a batch that is not full stands for form
(a); an adapter, a grammar or remote KV that holds requests back looks the same there.

Told apart from: batch_thrashing (three or more drain–refill cycles), overload (nothing that waits would fit), a hang (a
step that does not end), long_context_kv_pressure (nothing would fit even out of order).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..memory.view import SLOW_S, Window
from ..model import Advice, Finding, Missing
from ..questions.culprits import head, holders
from ..questions.demand import full_batch, has_room, held_back, promised_to_one, sees_admission
from ..questions.progress import stall
from ..questions.rhythm import rhythm
from ..questions.ruled_out import not_hang, not_preemption_storm, not_throttling, not_traffic_surge
from . import Rule

SPAN_S = 30.0
SLOW_LOOKS = 2.2
"""Cadences that three slow looks in a row span, and a little."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits; set on recorded scenarios."""

    held_s: float = 3.0  # so long, without a break, must a request that would fit have been held up
    held_inferred_s: float = 7.0  # the same where free cache stands for who would fit
    stalled_s: float = 5.0  # so much of half a minute went into one prompt's steps
    head_wait_slo_ratio: float = 2.0  # the head waits this many TTFT objectives
    prefill_step_slo_ratio: float = 1.0  # a step as long as the TTFT objective, spent on one prompt
    cycles: int = 3  # from here on it is batch_thrashing
    free_usage_ratio: float = 0.85  # without a ring: cache in use below this while requests wait


def check(w: Window, p: Params) -> Finding | None:
    """A head that does not fit with others that would, or one prefill that stalls the rest."""
    r = w.maybe(rhythm)
    if r is not None and r.current and r.cycles >= p.cycles:
        return None
    found = _admission(w, p) or _compute(w, p)
    if found is None or r is None or not (r.current and r.cycles >= 1):
        return found
    return msgspec.structs.replace(found, confidence=min(found.confidence, 0.45))  # it recurs: wait for the third


def _admission(w: Window, p: Params) -> Finding | None:
    waiting = w.series("req_waiting", SPAN_S, thin=0.3) > 0
    if sees_admission(w):
        could_go = (w.series("waiting_fit", SPAN_S, thin=0.3) > 0) & has_room(w, SPAN_S)
        held = waiting & held_back(w, SPAN_S) & (could_go | promised_to_one(w, SPAN_S))
        head_s = w.level("head_wait_seconds")
        sure, signal, held_s = 0.85, "waiting_fit", p.held_s
    else:
        held, held_s = _inferred(w, p)
        head_s, sure, signal = math.nan, 0.6, "kv_usage_ratio"
    run_s = _last_run(held)
    if run_s < held_s or _stands_still(w, p.held_s):
        return None
    if not math.isnan(head_s) and head_s < p.head_wait_slo_ratio * w.slo.ttft_p95_s:
        return None
    free = 1 - w.mean("kv_usage_ratio", min(SPAN_S, run_s))
    return Finding(
        rule="head_of_line_blocking",
        subject=w.subject,
        confidence=sure,
        summary=(
            f"The head of the queue does not fit and holds up requests that would: {run_s:.0f} s without a break, "
            f"with {free:.0%} of the KV pool free."
        ),
        onset_at=math.floor(w.now) - run_s,
        mechanism="kv_admission",
        evidence=(
            w.evidence(f"requests that would fit are held up ({signal}), seconds", run_s, held_s, ">=", SPAN_S),
            w.evidence("head_wait_seconds", None if math.isnan(head_s) else head_s, w.slo.ttft_p95_s, ">", 1),
            w.evidence("kv_usage_ratio", 1 - free, p.free_usage_ratio, "<", run_s),
            w.evidence("req_waiting", w.level("req_waiting"), 0.0, ">", 1),
        ),
        ruled_out=(not_traffic_surge(w), not_hang(w), not_preemption_storm(w), not_throttling(w)),
        culprits=(*head(w), *holders(w, 2)),
    )


def _inferred(w: Window, p: Params) -> tuple[NDArray[np.bool_], float]:
    """In which seconds free cache speaks for a blocked head, and for how long it must last.

    Slow looks: three of them in a row, and between them nobody may have been let in, for a blocked head admits nobody:
    those who run may not have become more, those who wait not fewer.
    """
    span_s = w.span_of("kv_usage_ratio", SPAN_S)
    running = w.series("req_running", span_s, thin=0.3)
    waiting = w.series("req_waiting", span_s, thin=0.3)
    held = (waiting > 0) & (running < 0.95 * full_batch(w))
    held &= w.series("kv_usage_ratio", span_s, thin=0.3) < p.free_usage_ratio
    pace_s = w.cadence_s("kv_usage_ratio")
    if pace_s <= SLOW_S:
        return held, p.held_inferred_s
    let_in = np.flatnonzero((np.diff(running) > 0) | (np.diff(waiting) < 0))
    if len(let_in):
        held[: int(let_in[-1]) + 1] = False
    return held, max(p.held_inferred_s, SLOW_LOOKS * pace_s)


def _stands_still(w: Window, for_s: float) -> bool:
    """Nobody is served at all: then it is not the order of service that holds them up."""
    s = w.maybe(stall)
    return s is not None and s.for_s >= for_s


def _compute(w: Window, p: Params) -> Finding | None:
    """Steps as long as the objective that were spent on one prompt, while others waited for a token or a place."""
    try:
        longest = w.series("step_longest_prefill_tokens", SPAN_S, thin=0.1)
        seconds = w.series("step_seconds", SPAN_S, thin=0.1)
        waiting = w.series("req_waiting", SPAN_S, thin=0.1)
        usual = w.once(_usual_chunk)
    except Missing:
        return None
    slow = (seconds >= p.prefill_step_slo_ratio * w.slo.ttft_p95_s) & (longest >= 8 * usual) & (waiting > 0)
    spent_s = float(np.nansum(np.where(slow, 1.0, 0.0)))
    s = w.once(stall)
    if spent_s < p.stalled_s or s.for_s > max(10.0, 3 * (s.predicted_s or 0.0)):
        return None
    return Finding(
        rule="head_of_line_blocking",
        subject=w.subject,
        confidence=0.75,
        summary=f"One prompt's prefill took {spent_s:.0f} of the last {SPAN_S:.0f} s of steps while others waited.",
        onset_at=math.floor(w.now) - SPAN_S + float(np.flatnonzero(slow)[0]),
        mechanism="prefill_compute",
        evidence=(
            w.evidence("step_seconds, greatest", float(np.nanmax(seconds)), w.slo.ttft_p95_s, ">=", SPAN_S),
            w.evidence("step_longest_prefill_tokens", float(np.nanmax(longest)), 8 * usual, ">=", SPAN_S),
        ),
        ruled_out=(not_traffic_surge(w), not_hang(w), not_throttling(w)),
        culprits=head(w),
    )


def _usual_chunk(w: Window) -> float:
    chunk = w.series("step_longest_prefill_tokens", 900.0, thin=0.0)
    some = chunk[chunk > 0]
    if len(some) < 10:
        raise Missing("step_longest_prefill_tokens", "fewer than ten seconds with a prefill")
    return float(np.median(some))


def _last_run(held: NDArray[np.bool_]) -> float:
    """Length of the run of True that ends now (a break of one second does not end it)."""
    run, misses = 0, 0
    for value in held[::-1].tolist():
        misses = 0 if value else misses + 1
        if misses > 1:
            break
        run += 1
    return float(run - misses) if run > misses else 0.0


RULE = Rule(
    stem="head_of_line_blocking",
    family="kv_admission",
    title="Head-of-line blocking",
    check=check,
    params=Params,
    needs=("req_waiting", "kv_usage_ratio", "req_running"),
    opens_eyes="let the agent read the engine's step ring (GPUWATCH_RING_DIR): it shows the head and who would fit",
    for_s=1,
    resolve_s=20,
    severity="ticket",
    action="limit_client",
    advice=(
        Advice(
            do="Hold back or reroute the request that blocks; the queue moves as soon as it is gone.",
            knob="gateway: limit prompt tokens, or cancel the request by its id",
            applies="runtime",
            takes_s=10,
            costs="one client is refused",
            verify="gpuwatch_head_wait_seconds falls to the step time, gpuwatch_waiting_fit to 0",
            undo="remove the limit",
        ),
        Advice(
            do="Refuse what can never fit, give the pool room, or prefill long prompts in smaller chunks.",
            knob="vLLM: --max-model-len below the pool, --kv-cache-dtype fp8, --long-prefill-token-threshold 2048; SGLang: "
            "--context-length, --chunked-prefill-size; bundled engine: --admission bypass, --max-chunk-tokens",
            applies="restart",
            takes_s=300,
            costs="a restart and a cold prefix cache",
            verify="the same mix of prompts no longer raises gpuwatch_head_wait_seconds",
            undo="start with the old arguments",
        ),
    ),
    not_now=(
        "Do not scale out on the length of this queue: the pool has room, the order of service has not.",
        "Do not restart: a head that fits the pool clears once enough of the batch has finished; one that does not must go.",
    ),
    tell_apart=("batch_thrashing", "overload", "long_context_kv_pressure", "engine_hang", "traffic_surge"),
)
