"""Harm: what users feel, and whether that is beyond the objective and beyond twice what is usual here.

Harm decides severity, a mechanism alone does not. It is felt when the wait of the queue's head, TTFT or ITL is beyond the
objective *and* beyond twice its own baseline, or when nothing moves. Where an engine tells no latency at all, a queue of
several batches that has stood for half a minute stands for it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..memory.view import Window
from ..model import Impact, Missing
from .latency import Felt, acute, felt, itl_mean_s
from .progress import stall
from .queue import queue

GOOD_RATIO = 0.95
BASELINE_FACTOR = 2.0
NO_PROGRESS_S = 10.0
FEWEST = 10.0
BREACH_SOON_S = 600.0
CROWD_S, CROWD_BATCHES = 30.0, 2.0


class Harm(NamedTuple):
    """`felt` and why; `breached`: the objective is missed for the pool; `no_progress`: it cannot serve at all.

    `acute`: not only the last minute but the last twenty seconds show it.
    """

    felt: bool
    breached: bool
    no_progress: bool
    why: str
    now: Felt | None
    acute: bool = False


def harm(w: Window) -> Harm:
    """What users of this engine feel over the last minute."""
    s = w.maybe(stall)
    if s is not None and s.for_s >= NO_PROGRESS_S and s.inside > 0:
        known = w.maybe(felt)
        return Harm(True, True, True, f"no progress for {s.for_s:.0f} s", known, True)
    known = w.maybe(felt)
    usual = w.baseline.usual("ttft_p95_s")
    limit = max(w.slo.ttft_p95_s, BASELINE_FACTOR * usual if usual is not None else 0.0)
    if known is not None and known.requests >= FEWEST and known.good_ratio < GOOD_RATIO:
        worst = known.ttft_p95_s
        if math.isnan(worst) or worst > limit:
            why = f"{known.good_ratio:.0%} of requests within the TTFT objective"
            return Harm(True, True, False, why, known, bool(w.maybe(acute)))
    if (head_s := _head_wait(w)) > limit:
        return Harm(True, False, False, f"the head of the queue has waited {head_s:.1f} s", known)
    itl, usual_itl = w.maybe(itl_mean_s), w.baseline.usual("itl_mean_s")
    if itl is not None and itl > max(w.slo.tpot_p95_s, BASELINE_FACTOR * (usual_itl or 0.0)):
        return Harm(True, False, False, f"mean inter-token latency {itl * 1000:.0f} ms", known, True)
    if known is None and (crowd := w.maybe(_crowd)):
        return Harm(
            True, False, False, f"{crowd:.0f} or more have waited for {CROWD_S:.0f} s; latency is not seen", None
        )
    return Harm(False, False, False, "", known)


def _crowd(w: Window) -> float:
    """The shortest that the queue was, where that is several batches; 0 else. Of an engine that tells no latency (llama.cpp)
    it is all that shows what users feel."""
    waiting = w.series("req_waiting", w.span_of("req_waiting", CROWD_S))
    least = float(np.nanmin(waiting))
    return least if least >= CROWD_BATCHES * max(1.0, w.level("req_running")) else 0.0


def _head_wait(w: Window) -> float:
    try:
        return w.level("head_wait_seconds")
    except Missing:
        return 0.0  # not seen: then TTFT must tell


def impact(w: Window, h: Harm, onset_at: float) -> Impact:
    """The impact for a verdict: pairs are [usual before the onset, now]."""
    slo_s = w.slo.ttft_p95_s
    now = h.now
    until = w.once(queue).until_s
    return Impact(
        objective=f"TTFT P95 ≤ {slo_s:g} s",
        good_ratio=now.good_ratio if now else None,
        before_ratio=w.baseline.usual("good_ratio", onset_at),
        late_requests=_late_since(w, onset_at, _waiting_late(w, h)),
        ttft_p95_s=(w.baseline.usual("ttft_p95_s", onset_at), _known(now.ttft_p95_s) if now else None),
        e2e_p95_s=(w.baseline.usual("e2e_p95_s", onset_at), _known(now.e2e_p95_s) if now else None),
        breached=h.breached,
        breach_in_s=until if until is not None and until < BREACH_SOON_S else None,
    )


def _waiting_late(w: Window, h: Harm) -> float | None:
    """How many requests inside are late by now: everyone while nothing moves; None where it cannot be known."""
    if h.no_progress:
        return w.once(stall).inside
    return float(math.floor(h.now.late_waiting)) if h.now else None


def _late_since(w: Window, onset_at: float, inside: float | None) -> float | None:
    """Requests that finished late since the onset, and those inside that are late now."""
    span_s = min(900.0, max(1.0, w.now - onset_at))
    try:
        ttft = w.finished(span_s)["ttft_s"]
        return float((ttft > w.slo.ttft_p95_s).sum()) + (inside or 0.0)
    except Missing:
        pass  # no spans: the histogram counts them
    try:
        share, n = w.observed_share("ttft_seconds", w.slo.ttft_p95_s, span_s)
        return float(round((1 - share) * n)) + (inside or 0.0)
    except Missing:
        return inside


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
