"""Facts about demand and capacity: arrivals, completions, load factors by Little's law, and who could be admitted.

Load factors are estimated live: a resource that is used to u on average, while λ requests arrive and μ finish per second,
would be used to u·λ/μ if every arrival were served (Little 1961). With an order-free scheduler a factor ≥ 1 means that no
scheduler setting restores the objective at this demand.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..memory.view import Window
from ..model import Floats, Missing
from ..stats import RateChange, quantile_of_known, rate_change, split_llr

SPAN_S = 60.0
SURGE_RATIO = 1.5
SURGE_SPAN_S = 300.0
LOCAL_LLR = 10.0
BLOCKED_STOPS = (1.0, 4.0, 6.0)
"""Admission stop reasons that mean "the head does not fit" (docs/ring.md): no blocks, watermark, reservation."""
TOKEN_BUDGET = 3.0
ROOM_USAGE_RATIO = 0.9
"""Above this, what would fit is the smallest of many: letting it pass the head would win next to nothing."""


class Flow(NamedTuple):
    """Arrivals and completions per second over the last minute."""

    arrivals_per_s: float
    completions_per_s: float


def arrivals(w: Window, span_s: float = 300.0) -> Floats:
    """Arrivals in each second of the span.

    From the engine's own counter; an engine that counts none is read as finished + running + waiting, whose increase is
    the arrivals (aborted requests, which vLLM counts nowhere, are then missed).
    """
    if w.has("req_arrived_total"):
        return w.increments("req_arrived_total", span_s)
    total = w.series("req_finished_total", span_s + 1, thin=0.1)
    inside = w.series("req_running", span_s + 1, thin=0.1) + w.series("req_waiting", span_s + 1, thin=0.1)
    return np.diff(total + inside)


def flow(w: Window) -> Flow:
    """λ and μ over the last minute (at least ten known seconds)."""
    counts = arrivals(w, SPAN_S)
    if int((~np.isnan(counts)).sum()) < 10:
        raise Missing("req_arrived_total", "fewer than ten seconds of arrivals")
    return Flow(float(np.nanmean(counts)), w.rate("req_finished_total", SPAN_S))


def longer_flow(w: Window) -> Flow:
    """λ and μ over two minutes: longer than a drain–refill cycle."""
    counts = arrivals(w, 120.0)
    return Flow(float(np.nanmean(counts)), w.rate("req_finished_total", 120.0))


class Surge(NamedTuple):
    """A step of the arrival rate: when (unix seconds), and requests per second in the minute before and after."""

    at: float
    change: RateChange


def surge(w: Window) -> RateChange | None:
    """A step of the arrival rate to at least 1.5 × within the last five minutes that is not chance (llr ≥ 8).

    The rates are those of the minute before and the minute after: a rate that climbs over minutes is no step. At a few
    requests a second two minutes differ by half by chance; their own difference must be unlikely too (llr ≥ 10).
    """
    return _step(arrivals(w, SURGE_SPAN_S + 60))


def surge_at(w: Window) -> float | None:
    """When the arrival rate rose, unix seconds."""
    found = w.once(surge)
    return None if found is None else math.floor(w.now) - SURGE_SPAN_S + found.cell


def surge_by(w: Window, until: float) -> Surge | None:
    """The step as it was known at `until` (unix seconds): what came later neither makes nor unmakes it."""
    age = max(0, math.floor(w.now - until))
    if age + SURGE_SPAN_S + 60 > 900:
        return None
    counts = arrivals(w, SURGE_SPAN_S + 60 + age)
    found = _step(counts[: len(counts) - age])
    return None if found is None else Surge(math.floor(w.now) - age - SURGE_SPAN_S + found.cell, found)


def _step(counts: Floats) -> RateChange | None:
    """The step in the last five minutes of the counts, `cell` counted from there; they have a minute more before."""
    recent = counts[-int(SURGE_SPAN_S) :]
    if np.isnan(recent).mean() > 0.7:
        return None
    found = rate_change(recent)
    if found is None or found.llr < 8:
        return None
    # A change at the far end of the five minutes has its whole minute before, too.
    at = found.cell + len(counts) - len(recent)
    minutes = counts[max(0, at - 60) : at], counts[at : at + 60]
    before, after = float(np.nanmean(minutes[0])), float(np.nanmean(minutes[1]))
    if after < SURGE_RATIO * max(before, 1e-9) or split_llr(*minutes) < LOCAL_LLR:
        return None
    return found._replace(before=before, after=after)


class LoadFactors(NamedTuple):
    """Estimated load factors; NaN where a resource cannot be seen. 1 is the end of what any order of service can do."""

    kv: float
    seqs: float


def load_factors(w: Window) -> LoadFactors:
    """ρ of the KV pool and of the batch slots over two minutes (Little's law)."""
    f = w.once(longer_flow)
    stretch = f.arrivals_per_s / f.completions_per_s if f.completions_per_s > 0 else math.inf
    kv = w.mean("kv_usage_ratio", 120.0) * stretch if w.has("kv_usage_ratio") else math.nan
    try:
        seqs = w.mean("req_running", 120.0) / w.limit("max_num_seqs") * stretch
    except Missing:
        seqs = math.nan
    return LoadFactors(kv, seqs)


def held_back(w: Window, span_s: float) -> NDArray[np.bool_]:
    """In which seconds admission ended at a request that did not fit, or at one prompt that took the step's tokens.

    The latter: the token budget ended admission, and one prefill chunk, four times the typical prompt or more, was at
    least 0.8 of the step's prefill.
    """
    reason = w.series("admission_stop_reason", span_s, thin=0.3)
    blocked: NDArray[np.bool_] = np.logical_or.reduce([reason == stop for stop in BLOCKED_STOPS])
    typical = w.maybe(typical_prompt_tokens)
    if typical is None or not w.has("step_longest_prefill_tokens"):
        return blocked
    longest = w.series("step_longest_prefill_tokens", span_s, thin=0.3)
    prefill = w.series("step_prefill_tokens", span_s, thin=0.3)
    convoy: NDArray[np.bool_] = (reason == TOKEN_BUDGET) & (longest >= 4 * typical) & (longest >= 0.8 * prefill)
    return np.logical_or(blocked, convoy)


def sees_admission(w: Window) -> bool:
    """Whether the engine shows who would fit and why admission ended; a page shows the former at most."""
    return w.has("waiting_fit") and w.has("admission_stop_reason")


def promised_to_one(w: Window, span_s: float) -> NDArray[np.bool_]:
    """In which seconds one prompt's prefill was under way and the rest of the pool was promised to it.

    A tenth of the pool or more is reserved and not written, and one chunk is at least 0.8 of the step's prefill.
    """
    if not (w.has("kv_reserved_unused_ratio") and w.has("step_longest_prefill_tokens")):
        return np.zeros(round(span_s), bool)
    reserved = w.series("kv_reserved_unused_ratio", span_s, thin=0.3)
    longest = w.series("step_longest_prefill_tokens", span_s, thin=0.3)
    prefill = w.series("step_prefill_tokens", span_s, thin=0.3)
    return np.asarray((reserved >= 0.1) & (longest > 0) & (longest >= 0.8 * prefill))


def full_batch(w: Window) -> float:
    """The size of a full batch: the configured limit, or, where the engine does not say (vLLM), the greatest seen lately."""
    try:
        return w.limit("max_num_seqs")
    except Missing:
        return w.greatest("req_running", 300.0, thin=0.05)


def has_room(w: Window, span_s: float) -> NDArray[np.bool_]:
    """In which seconds a tenth of the pool or more was free; all of them where the pool is not seen."""
    if not w.has("kv_usage_ratio"):
        return np.ones(round(span_s), bool)
    return np.asarray(w.series("kv_usage_ratio", span_s, thin=0.3) < ROOM_USAGE_RATIO)


class Fit(NamedTuple):
    """While requests waited: in what share of the time some of them would have fitted, and how it is known."""

    share: float
    waiting_s: float
    witness: str


def fit(w: Window, span_s: float = SPAN_S) -> Fit:
    """Share of the waiting time in which a request that would fit was held up.

    The ring counts such requests; a tenth of the pool must be free. Without it, free cache (usage < 0.85) while requests
    wait and the batch is not full stands for it; refuses where neither is known.
    """
    waiting = w.series("req_waiting", span_s, thin=0.3)
    queued = waiting > 0
    n = float(queued.sum())
    if sees_admission(w):
        could = (w.series("waiting_fit", span_s, thin=0.3) > 0) & has_room(w, span_s)
        blocked = held_back(w, span_s)
        return Fit(float((could & blocked & queued).sum()) / n if n else 0.0, n, "waiting_fit")
    usage = w.series("kv_usage_ratio", span_s, thin=0.3)
    could = usage < 0.85
    with suppress(Missing):  # no limit known: the batch may be full, so the free cache alone speaks
        could &= w.series("req_running", span_s, thin=0.3) < 0.95 * w.limit("max_num_seqs")
    return Fit(float((could & queued).sum()) / n if n else 0.0, n, "kv_usage_ratio")


def fit_minute(w: Window) -> Fit:
    """`fit` over the last minute."""
    return fit(w, SPAN_S)


def typical_prompt_tokens(w: Window) -> float:
    """Median prompt length of the arrivals of the last 15 minutes; refuses below 20 of them."""
    _, lengths = w.history.arrivals.window(w.now - 900, w.now)
    if len(lengths) < 20:
        raise Missing("live_requests", "fewer than 20 requests of known length")
    return quantile_of_known(lengths, 0.5)


def long_tokens(w: Window) -> float:
    """From how many prompt tokens on a request is long here: 8 × the median."""
    return 8 * w.once(typical_prompt_tokens)


def long_share(w: Window) -> float:
    """Share of the held KV that long requests hold now, from the live table."""
    live = w.live
    holds = live.blocks > 0
    if not holds.any():
        return 0.0
    long = live.prompt_tokens + live.generated_tokens >= w.once(long_tokens)
    used = w.level("kv_used_blocks") if w.has("kv_used_blocks") else 0.0
    return min(1.0, float(live.blocks[long & holds].sum()) / max(used, float(live.blocks[holds].sum())))
