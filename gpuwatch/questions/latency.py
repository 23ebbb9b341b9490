"""Question 4: where does the latency go, and what do users feel?

TTFT is split by stage over the last minute. What users feel includes those who still wait: a request that waits longer
than the objective is late already, although no histogram and no span knows it yet (survivor bias).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..memory.view import Window
from ..model import Floats, LatencyState, Missing
from ..stats import quantile
from .demand import flow

SPAN_S = 60.0
ACUTE_S = 20.0
FEW = 5
LONGEST_S = 900.0
"""No wait is called longer: history ends there, and where nothing completes the estimate is infinite."""


class Shares(NamedTuple):
    """Share of TTFT by stage: before the queue, queue, prefill. They sum to one."""

    front: float
    queue: float
    prefill: float


def shares(w: Window) -> Shares:
    """From spans; else from the histograms' Δsum/Δcount; refuses below five requests."""
    try:
        done = w.finished(SPAN_S)
    except Missing:
        done = {}
    known = ~np.isnan(done["ttft_s"]) if done else np.zeros(0, bool)
    if int(known.sum()) >= FEW:
        total = float(done["ttft_s"][known].sum())
        queue = float(np.nan_to_num(done["queue_s"][known]).sum())
        prefill = float(np.nan_to_num(done["prefill_s"][known]).sum())
    else:
        total = w.observed_mean("ttft_seconds", SPAN_S)
        queue = w.observed_mean("queue_seconds", SPAN_S)
        prefill = w.observed_mean("prefill_seconds", SPAN_S)
    total = max(total, queue + prefill, 1e-9)
    return Shares(max(0.0, total - queue - prefill) / total, queue / total, prefill / total)


def latency(w: Window) -> LatencyState:
    """The stage that holds most of TTFT now. A head that waits longer than the mean TTFT speaks for the queue."""
    split = w.maybe(shares)
    values = {"front": split.front, "queue": split.queue, "prefill": split.prefill} if split else {}
    try:
        head_s = w.level("head_wait_seconds")
        usual = w.baseline.usual("ttft_p50_s") or w.slo.ttft_p50_s
        if head_s > max(w.slo.ttft_p95_s, 2 * usual):
            values["queue"] = max(values.get("queue", 0.0), head_s / (head_s + usual))
    except Missing:
        pass  # no ring: finished requests speak alone
    if not values:
        return LatencyState("unknown")
    stage = max(values, key=lambda s: values[s])
    return LatencyState(stage, min(1.0, values[stage]), w.baseline.usual(f"{stage}_share"))


class Felt(NamedTuple):
    """What users feel over the last minute. `late_waiting`: requests that wait longer than the objective by now.

    `good_ratio` is the share within the TTFT objective, of finished and late waiting requests together.
    """

    good_ratio: float
    requests: float
    late_waiting: float
    ttft_p50_s: float
    ttft_p95_s: float
    e2e_p95_s: float


def felt(w: Window) -> Felt:
    """From spans and the queue; from histograms where there are no spans."""
    limit_s = w.slo.ttft_p95_s
    late = w.once(late_waiting)
    head_s = min(_head_wait(w), LONGEST_S)
    done = _finished(w)
    ttft = done["ttft_s"][~np.isnan(done["ttft_s"])] if done else np.zeros(0)
    if len(ttft) >= FEW or (len(ttft) and late > 0):
        good = float((ttft <= limit_s).sum())
        n = len(ttft) + late
        ages = np.linspace(limit_s, max(limit_s, head_s), math.ceil(min(late, 2000))) if late >= 1 else np.zeros(0)
        everyone = np.concatenate([ttft, ages])
        return Felt(good / n, n, late, quantile(everyone, 0.5), quantile(everyone, 0.95), quantile(done["e2e_s"], 0.95))
    share, n = w.observed_share("ttft_seconds", limit_s, SPAN_S)
    return Felt(
        share * n / (n + late),
        n + late,
        late,
        _or_nan(lambda: w.observed_quantile("ttft_seconds", 0.5, SPAN_S)),
        max(_or_nan(lambda: w.observed_quantile("ttft_seconds", 0.95, SPAN_S)), head_s if late >= 1 else -math.inf),
        _or_nan(lambda: w.observed_quantile("e2e_seconds", 0.95, SPAN_S)),
    )


def acute(w: Window) -> bool:
    """Whether first tokens of the last twenty seconds came late too: what a minute's window still shows may be over.

    Below three such requests the queue's head decides.
    """
    done = _finished(w)
    if done:
        first_token_at = done["start"] + done["ttft_s"]
        recent = done["ttft_s"][first_token_at >= w.now - ACUTE_S]
        if len(recent) >= 3:
            return float((recent <= w.slo.ttft_p95_s).mean()) < 0.95
        return _head_wait(w) > w.slo.ttft_p95_s
    try:
        return w.observed_share("ttft_seconds", w.slo.ttft_p95_s, ACUTE_S)[0] < 0.95
    except Missing:
        return _head_wait(w) > w.slo.ttft_p95_s


def late_waiting(w: Window) -> float:
    """How many requests wait longer than the TTFT objective: those beyond the arrivals of the last `objective` seconds.

    In a FIFO queue the younger ones are the last λ·objective arrivals (Little's law). 0 while the head is in time.
    """
    waiting = w.level("req_waiting")
    f = w.maybe(flow)
    if f is None or _head_wait(w) <= w.slo.ttft_p95_s:
        return 0.0
    return max(0.0, waiting - f.arrivals_per_s * w.slo.ttft_p95_s)


def _head_wait(w: Window) -> float:
    """Wait of the queue's head; without a ring, waiting ÷ completions per second."""
    try:
        return w.level("head_wait_seconds")
    except Missing:
        f = w.maybe(flow)
        if f is None:
            return 0.0
        waiting = w.level("req_waiting")
        return waiting / f.completions_per_s if f.completions_per_s > 0 else (math.inf if waiting else 0.0)


def _finished(w: Window) -> dict[str, Floats]:
    try:
        return w.finished(SPAN_S)
    except Missing:
        return {}


def _or_nan(ask: object) -> float:
    try:
        return float(ask())  # type: ignore[operator]
    except Missing:
        return math.nan


def itl_mean_s(w: Window) -> float:
    """Mean inter-token latency of the last minute: from spans (decode ÷ tokens), else the histogram."""
    done = _finished(w)
    if done:
        tokens = np.nan_to_num(done["output_tokens"]) - 1
        decode = np.nan_to_num(done["decode_s"])
        if float(tokens[tokens > 0].sum()) > 0:
            return float(decode[tokens > 0].sum() / tokens[tokens > 0].sum())
    return w.observed_mean("itl_seconds", SPAN_S) / _tokens_per_output(w)


def _tokens_per_output(w: Window) -> float:
    """An engine that speculates observes one gap for several tokens; 1 where it does not."""
    try:
        if w.rate("spec_drafts_total", SPAN_S) <= 0:
            return 1.0
        _, outputs = w.observed_share("itl_seconds", math.inf, SPAN_S)
        return max(1.0, w.rate("generated_tokens_total", SPAN_S) * SPAN_S / outputs)
    except Missing:
        return 1.0
