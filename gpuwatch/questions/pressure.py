"""Demand beyond capacity: what overload and traffic_surge have in common, and which of the two it is."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..memory.view import SLOW_S, Window
from ..model import Missing
from ..stats import RateChange, quantile_of_known
from .demand import Fit, Flow, fit_minute, flow, load_factors, surge_by
from .queue import began_at, queue
from .rhythm import rhythm

FULL_RATIO = 0.9
LONG_SHARE = 0.5
FIT_SHARE = 0.2
PLATEAU_RATIO = 0.97
SURGE_BEFORE_S = 90.0
"""A minute, and half of one for a queue that is short at first: it is dated by when it was a tenth of what it is."""
SURGE_KNOWN_S = 150.0
"""A step that set a queue off is seen by then; what is found later is chance, and what is lost later was none the less."""
SLOW_LOOKS = 2.2
"""Cadences that three slow looks in a row span, and a little."""
UNSURE = 0.45
"""Not sure enough to open an incident, enough to keep one open."""


class Pressure(NamedTuple):
    """A queue that a full engine cannot serve. Rates per second; `waiting_service_s` = waiting ÷ completions.

    `surge` is the step of the arrival rate that began shortly before the queue; None without one. An engine that counts
    no finished requests (llama.cpp) has NaN for both rates and for what follows from them.
    """

    arrivals_per_s: float
    completions_per_s: float
    waiting: float
    waiting_service_s: float
    slope_per_s: float
    began_at: float
    queued_for_s: float
    full_of: str  # batch or KV pool
    fullness: float
    fit_share: float
    load_factor: float
    surge: RateChange | None
    surge_at: float | None
    confidence: float


def pressure(w: Window) -> Pressure | None:
    """None where the engine has room, keeps up, or is full of a few long requests or behind a blocked head."""
    q = w.once(queue)
    if q.trend == "unknown":
        raise Missing("req_waiting", "the queue is not known")
    if q.trend == "empty" or q.waiting is None or q.waiting < 1:
        return None
    counted = bool(w.history.sources("req_finished_total"))
    f = w.once(flow) if counted else Flow(math.nan, math.nan)
    began = w.once(began_at)
    full = _full_of(w)
    pace_s = w.cadence_s("req_waiting")
    if full is None or (pace_s > SLOW_S and w.now - began < SLOW_LOOKS * pace_s):
        return None  # of slow looks, three must have seen the queue
    fitting = w.maybe(fit_minute) or Fit(0.0, 0.0, "none")
    if full[0] == "KV pool" and (fitting.share > FIT_SHARE or few_hold_the_pool(w)):
        return None
    mu = f.completions_per_s
    rise = surge_by(w, began + SURGE_KNOWN_S) if counted else None
    if rise is not None and not rise.at - 15 <= began <= rise.at + SURGE_BEFORE_S:
        rise = None
    factors = w.maybe(load_factors)
    factor = math.nan if factors is None else (factors.seqs if full[0] == "batch" else factors.kv)
    rate = q.rate_per_s or 0.0
    return Pressure(
        f.arrivals_per_s,
        mu,
        q.waiting,
        q.waiting / mu if mu > 0 or not counted else math.inf,
        rate,
        began,
        w.now - began,
        full[0],
        full[1],
        fitting.share,
        factor,
        rise.change if rise else None,
        rise.at if rise else None,
        _confidence(w, f.arrivals_per_s > mu, q.trend),
    )


def _confidence(w: Window, beyond: bool, trend: str) -> float:
    """Unsure where the queue drains, as after many an incident, or where the batch drains and refills: then wait."""
    r = w.maybe(rhythm)
    if trend == "draining" or (r is not None and r.current and r.cycles >= 1):
        return UNSURE
    return 0.9 if beyond else 0.7


def _full_of(w: Window) -> tuple[str, float] | None:
    """What is full over the last half minute: the batch, else the KV pool; None where neither is."""
    span_s = w.span_of("req_running", 30.0)
    running = quantile_of_known(w.series("req_running", span_s, thin=0.3), 0.25)
    try:
        if running / w.limit("max_num_seqs") >= FULL_RATIO:
            return "batch", running / w.limit("max_num_seqs")
        plateau = math.inf
    except Missing:
        plateau = w.greatest("req_running", 300.0, thin=0.05)
    try:
        usage = quantile_of_known(w.series("kv_usage_ratio", span_s, thin=0.3), 0.25)
    except Missing:
        usage = math.nan
    if usage >= FULL_RATIO:
        return "KV pool", usage
    # No limit is known: a batch that stands at its greatest size while requests wait is as full as it gets.
    return ("batch", running / plateau) if running >= max(PLATEAU_RATIO * plateau, 4) else None


def few_hold_the_pool(w: Window) -> bool:
    """Long requests hold most of the pool; without a live table: twice the KV per request that is usual here."""
    try:
        return w.mean("kv_long_share_ratio", 30.0) >= LONG_SHARE
    except Missing:
        usual = w.baseline.usual("kv_per_request_ratio")
        if usual is None:
            return False
        return w.mean("kv_usage_ratio", 30.0) / max(1.0, w.mean("req_running", 30.0)) >= 2 * usual
