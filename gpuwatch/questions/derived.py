"""Signals that the agent derives once a second and keeps beside the engine's own, and the figures that baselines learn.

They make slow scrapers see what happens in seconds, and give the postmortem its curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..memory.tiers import Tier
from ..memory.view import Window
from ..model import Missing
from .demand import flow, long_share
from .latency import felt, itl_mean_s, shares
from .moved import output_tokens_mean, prompt_tokens_mean

SOURCE = "derived"

_SIGNALS: dict[str, Callable[[Window], float]] = {
    "arrival_rate_per_second": lambda w: w.once(flow).arrivals_per_s,
    "completion_rate_per_second": lambda w: w.once(flow).completions_per_s,
    "ttft_p50_seconds": lambda w: w.once(felt).ttft_p50_s,
    "ttft_p95_seconds": lambda w: w.once(felt).ttft_p95_s,
    "e2e_p95_seconds": lambda w: w.once(felt).e2e_p95_s,
    "good_ratio": lambda w: w.once(felt).good_ratio,
    "itl_mean_seconds": lambda w: w.once(itl_mean_s),
    "kv_long_share_ratio": lambda w: w.once(long_share),
    "queue_share_ratio": lambda w: w.once(shares).queue,
    "prefill_share_ratio": lambda w: w.once(shares).prefill,
    "front_share_ratio": lambda w: w.once(shares).front,
}
_NAMES = tuple(_SIGNALS)
_NO_COUNTERS = np.zeros(len(_NAMES), bool)

_FIGURES: dict[str, Callable[[Window], float]] = {
    "ttft_p50_s": _SIGNALS["ttft_p50_seconds"],
    "ttft_p95_s": _SIGNALS["ttft_p95_seconds"],
    "e2e_p95_s": _SIGNALS["e2e_p95_seconds"],
    "good_ratio": _SIGNALS["good_ratio"],
    "itl_mean_s": _SIGNALS["itl_mean_seconds"],
    "arrivals_per_s": _SIGNALS["arrival_rate_per_second"],
    "queue_share": _SIGNALS["queue_share_ratio"],
    "prefill_share": _SIGNALS["prefill_share_ratio"],
    "front_share": _SIGNALS["front_share_ratio"],
    "prompt_tokens_mean": lambda w: w.once(prompt_tokens_mean),
    "output_tokens_mean": lambda w: w.once(output_tokens_mean),
    "kv_per_request_ratio": lambda w: w.mean("kv_usage_ratio", 60) / max(1.0, w.mean("req_running", 60)),
}


def write(w: Window) -> None:
    """Derive this second's signals into the engine's own history (source `derived`)."""
    values = np.array([[_or_nan(ask, w) for ask in _SIGNALS.values()]])
    tier = w.history.tiers.get(SOURCE)
    if tier is None:
        tier = w.history.tiers[SOURCE] = Tier()
        w.history.order.clear()
    # The second that has just closed: a value of `now` belongs to the cell before it.
    tier.write(_NAMES, np.array([w.now - 1e-3]), np.where(np.isfinite(values), values, math.nan), _NO_COUNTERS)


def figures(w: Window) -> dict[str, float]:
    """The figures that a baseline learns; NaN where the data cannot answer."""
    return {name: _or_nan(ask, w) for name, ask in _FIGURES.items()}


def _or_nan(ask: Callable[[Window], float], w: Window) -> float:
    try:
        return ask(w)
    except Missing:
        return math.nan
