"""Batch thrashing: the running set drains and refills again and again while requests wait, at flat arrivals.

Mechanism. Under FIFO admission a head that does not fit closes the door: the batch drains until the head fits, then a
burst is admitted and the pool is full again (head_admission). Or running requests outgrow the pool, the youngest are
preempted, no step that preempts admits anybody, and the burst that follows refills the pool (preemption_recompute).
Capacity would suffice with another order of service; slots stand empty in every drain.

Blind spots. Without the ring, who blocks and whether others would fit is inferred from free cache during drains. Cycles
shorter than four seconds are not seen on the one-second grid.

Told apart from: traffic_surge (arrivals flat), overload and long_context_kv_pressure (requests that would fit are held
up), preemption_storm (preemption without cycles), head_of_line_blocking (fewer than three cycles), engine_hang.
"""

from __future__ import annotations

import math

import msgspec

from ..memory.view import SLOW_S, Window
from ..model import Advice, Evidence, Finding, Missing
from ..questions.culprits import head, holders
from ..questions.demand import fit_minute, load_factors, surge
from ..questions.latency import shares
from ..questions.moved import MEAN_RATIO, prompt_tokens_mean
from ..questions.pressure import few_hold_the_pool
from ..questions.queue import queue
from ..questions.rhythm import Rhythm, rhythm
from ..questions.ruled_out import (
    not_hang,
    not_preemption_storm,
    not_throttling,
    not_traffic_surge,
    preemptions_per_finished,
    recompute_share,
)
from . import Rule

FINE_LOOKS = 8
"""With fewer looks a cycle, cycles between two looks may be missed, and the period is a longer one's."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits; the counts are the definition of the class, the ratios were set on recorded scenarios."""

    cycles: int = 3
    swing_ratio: float = 0.25  # of the full batch; a cycle of preemption loses a part of it only
    lost_slots_ratio: float = 0.2  # of the full batch, while requests wait
    fit_share: float = 0.15  # of the waiting time, in which a request that would fit is held up
    preemptions_per_finished: float = 0.2  # from here on the cycle is one of preemption
    recompute_share: float = 0.1


def check(w: Window, p: Params) -> Finding | None:
    """Cycles while requests wait, slots lost, and an order of service that is to blame."""
    r = w.once(rhythm)
    if not r.current or r.cycles < 1 or r.lost_slots_ratio < p.lost_slots_ratio or r.swing_ratio < p.swing_ratio:
        return None
    mechanism, why = _mechanism(w, p)
    sure = 0.9 if r.cycles >= p.cycles else 0.4
    if not mechanism:
        sure = min(sure, 0.4)
    if w.maybe(surge) is not None:
        sure = min(sure, 0.45)
    if not w.has("waiting_fit"):
        sure *= 0.85
    pace_s = w.cadence_s("req_running")
    at_most = "at least " if pace_s > SLOW_S else ""
    if pace_s > max(SLOW_S, r.period_s / FINE_LOOKS):
        sure *= 0.85
    return Finding(
        rule="batch_thrashing",
        subject=w.subject,
        confidence=sure,
        summary=(
            f"The batch drains and refills {at_most}every {r.period_s:.0f} s ({r.cycles} cycles, swing {r.swing_ratio:.0%}) "
            f"while requests wait: {r.lost_slots_ratio:.0%} of its slots are lost to the order of admission."
        ),
        onset_at=r.onset_at,
        mechanism=mechanism,
        evidence=(*_cycles(w, r, p), *why, *_pressure(w), *_unseen(w)),
        ruled_out=(not_traffic_surge(w), not_throttling(w), not_hang(w), not_preemption_storm(w)),
        culprits=(*head(w), *holders(w)),
    )


def _unseen(w: Window) -> tuple[Evidence, ...]:
    """What a page alone cannot show, said where it would stand."""
    rows = []
    if (pace_s := w.cadence_s("req_running")) > SLOW_S:
        rows.append(Evidence(f"cycles shorter than {2 * pace_s:.0f} s", f"not seen: looks are {pace_s:.0f} s apart"))
    if not w.has("waiting_fit"):
        rows.append(Evidence("who would fit while the head is blocked", "not seen without a step ring: inferred"))
    if not holders(w):
        rows.append(Evidence("who holds and who blocks the cache", "not seen without a step ring"))
    if not w.history.finished.rows:
        rows.append(Evidence("single requests and their stages", "not seen without spans"))
    return tuple(rows)


def _mechanism(w: Window, p: Params) -> tuple[str, tuple[Evidence, ...]]:
    lost, again = w.maybe(preemptions_per_finished), w.maybe(recompute_share)
    preempts = (lost or 0.0) >= p.preemptions_per_finished or (again or 0.0) >= p.recompute_share
    if preempts and not _nobody_fits_beside_few(w, p):
        return "preemption_recompute", (
            w.evidence("req_preempted_total ÷ req_finished_total", lost, p.preemptions_per_finished, ">=", 120),
            w.evidence("recomputed_tokens_share", again, p.recompute_share, ">=", 120),
        )
    fitting = w.once(fit_minute)
    evidence = (w.evidence(f"waiting time with free room ({fitting.witness})", fitting.share, p.fit_share, ">=", 60),)
    return ("head_admission" if fitting.share >= p.fit_share else ""), evidence


def _nobody_fits_beside_few(w: Window, p: Params) -> bool:
    """A few long requests hold the pool and nobody who waits would fit: then capacity is what is missing.

    Without a live table, requests that hold more than usual may all have long answers: only longer prompts make it few.
    """
    fitting = w.maybe(fit_minute)
    if fitting is None or fitting.share > p.fit_share or not few_hold_the_pool(w):
        return False
    if w.has("kv_long_share_ratio"):
        return True
    usual, now = w.baseline.usual("prompt_tokens_mean"), w.maybe(prompt_tokens_mean)
    return usual is not None and now is not None and now >= MEAN_RATIO * usual


def _cycles(w: Window, r: Rhythm, p: Params) -> tuple[Evidence, ...]:
    span = w.now - r.onset_at
    spread = None if math.isnan(r.period_cv) else r.period_cv
    return (
        w.evidence("drain–refill cycles of req_running", r.cycles, p.cycles, ">=", span),
        w.evidence("cycle period, median (seconds)", r.period_s, None, "", span),
        w.evidence("cycle period, spread (CV)", spread, None, "", span),
        w.evidence("swing of req_running", r.swing_ratio, p.swing_ratio, ">=", span),
        w.evidence("slots lost while requests wait", r.lost_slots_ratio, p.lost_slots_ratio, ">=", span),
    )


def _pressure(w: Window) -> tuple[Evidence, ...]:
    q = w.once(queue)
    rows = [
        w.evidence("req_waiting", q.waiting, None, "", 5),
        w.evidence("req_waiting slope (1/s)", q.rate_per_s, None, "", 30),
    ]
    try:
        rows.append(w.evidence("kv_usage_ratio, mean", w.mean("kv_usage_ratio", 60), 1.0, "<", 60))
        rows.append(
            w.evidence(
                "load factor of the KV pool, estimated while slots are lost", w.once(load_factors).kv, None, "", 120
            )
        )
    except Missing:
        pass  # a page without KV usage: the cycles carry the verdict
    split = w.maybe(shares)
    if split is not None:
        rows.append(w.evidence("queue share of TTFT", split.queue, w.baseline.usual("queue_share"), "was", 60))
        rows.append(w.evidence("prefill share of TTFT", split.prefill, w.baseline.usual("prefill_share"), "was", 60))
    return tuple(rows)


RULE = Rule(
    stem="batch_thrashing",
    family="kv_admission",
    title="Batch thrashing",
    check=check,
    params=Params,
    needs=("req_running", "req_waiting", "kv_usage_ratio"),
    opens_eyes="let the agent read the engine's step ring (GPUWATCH_RING_DIR), or its page at 1 Hz or more",
    for_s=3,
    resolve_s=120,  # between two drains the batch may be full for a minute
    severity="page",
    action="limit_client",
    advice=(
        Advice(
            do="Cap or reroute the long prompts at the gateway; the cycle stops as soon as no head blocks the queue.",
            knob="gateway: limit prompt tokens, or a pool of its own for long context",
            applies="runtime",
            takes_s=60,
            costs="long requests wait or are refused for the time being",
            verify="no new drain of gpuwatch_req_running within three periods, gpuwatch_head_wait_seconds falls",
            undo="remove the limit",
        ),
        Advice(
            do="Send part of the traffic to a replica that does not cycle.",
            knob="router: weight of this replica",
            applies="runtime",
            takes_s=30,
            costs="load on the others",
            verify="gpuwatch_req_waiting falls here and stays flat there",
            undo="restore the weight",
        ),
        Advice(
            mechanism="head_admission",
            do="Give the pool room for the head, or let requests that fit pass it.",
            knob="vLLM: --kv-cache-dtype fp8, --gpu-memory-utilization, --scheduling-policy priority; SGLang: "
            "--mem-fraction-static, --enable-priority-scheduling; bundled engine: --admission bypass",
            applies="restart",
            takes_s=300,
            costs="a restart and a cold prefix cache; 8-bit KV costs a little accuracy, priorities make long prompts wait",
            verify="gpuwatch_rhythm_cycles stays 0 for ten minutes at the same traffic",
            undo="start with the old arguments",
        ),
        Advice(
            mechanism="preemption_recompute",
            do="Admit less at once, and keep some of the pool free for growth.",
            knob="vLLM: --watermark 0.02, --max-num-seqs down to where preemptions begin; SGLang: "
            "--schedule-conservativeness above 1; TensorRT-LLM: capacity_scheduler_policy GUARANTEED_NO_EVICT",
            applies="restart",
            takes_s=300,
            costs="a restart; fewer requests run at once",
            verify="gpuwatch_req_preempted_total stands still at the same traffic",
            undo="start with the old arguments",
        ),
    ),
    not_now=(
        "Do not add GPUs first: slots and cache stand empty in every drain; mend the order of service, then see what is left.",
        "Do not restart: the queue is lost and the cycle comes back with the same traffic.",
        "Do not raise max_num_seqs: more admitted at once makes the swing larger.",
    ),
    explains=("head_of_line_blocking", "preemption_storm", "long_context_kv_pressure", "overload"),
    tell_apart=(
        "traffic_surge", "overload", "long_context_kv_pressure", "preemption_storm", "head_of_line_blocking",
        "engine_hang", "gpu_throttling",
    ),
)  # fmt: skip
