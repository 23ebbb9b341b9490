"""What a source may be believed at all: impossible numbers become "not known" before anything is computed from them.

A value outside its signal's bounds, an infinity, or a magnitude that no signal reaches would overflow a mean, freeze the
grid or page somebody. Nothing here knows sources or rules; what was cut is counted by the caller.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..catalog import CATALOG, LARGEST
from ..model import Floats, LiveRequests, OpenStep, Spans

ROUNDING = 1e-6
"""A ratio may be this much above one: it was divided elsewhere."""
AHEAD_S = 60.0
"""A clock may be this much ahead of ours."""

_BOUNDS: dict[tuple[str, ...], tuple[Floats, Floats]] = {}


def readings(names: tuple[str, ...], values: Floats) -> tuple[Floats, int]:
    """Values with what is impossible as NaN, and how many those were."""
    low, high = _bounds(names)
    possible = (values >= low) & (values <= high)
    if possible.all():
        return values, 0
    return np.where(possible, values, math.nan), int((~possible & ~np.isnan(values)).sum())


def times(at: Floats, received_at: float) -> NDArray[np.bool_]:
    """Which times are times: finite, not before 1970, not ahead of when they were received."""
    return np.asarray((at >= 0) & (at <= received_at + AHEAD_S))


def spans(told: Spans, received_at: float) -> tuple[Spans, int]:
    """Spans that begin before they end, at times that are times; token counts that are none as NaN. And the number cut."""
    kept = times(told.start, received_at) & times(told.end, received_at) & (told.end >= told.start)
    tokens = {n: _amounts(getattr(told, n)) for n in ("prompt_tokens", "output_tokens", "cached_tokens")}
    told = replace(told, **tokens)
    if kept.all():
        return told, 0
    return replace(told, **{n: getattr(told, n)[kept] for n in _SPAN_COLUMNS}), int((~kept).sum())


def live(table: LiveRequests) -> LiveRequests:
    """The live table with amounts that are none as NaN."""
    return replace(table, **{n: _amounts(getattr(table, n)) for n in _LIVE_COLUMNS})


def step(told: OpenStep, received_at: float) -> OpenStep | None:
    """The step in progress, None where its times are none."""
    if not (0 <= told.begun_at <= received_at + AHEAD_S and 0 <= told.at <= received_at + AHEAD_S):
        return None
    amounts: dict[str, Any] = {n: _amount(getattr(told, n)) for n in _STEP_AMOUNTS}
    return replace(told, **amounts)


_SPAN_COLUMNS = ("request", "stage", "start", "end", "prompt_tokens", "output_tokens", "cached_tokens", "outcome")
_LIVE_COLUMNS = (
    "arrived_at", "stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions",
)  # fmt: skip
_STEP_AMOUNTS = ("prefill_tokens", "decode_tokens", "running", "waiting")


def _bounds(names: tuple[str, ...]) -> tuple[Floats, Floats]:
    known = _BOUNDS.get(names)
    if known is None:
        if len(_BOUNDS) > 1000:
            _BOUNDS.clear()
        signals = [CATALOG.get(name) for name in names]
        low = np.array([-LARGEST if s is None else max(s.low, -LARGEST) for s in signals])
        high = np.array([LARGEST if s is None else min(s.high * (1 + ROUNDING), LARGEST) for s in signals])
        known = _BOUNDS[names] = low - ROUNDING, high
    return known


def _amounts(values: Floats) -> Floats:
    possible = (values >= 0) & (values <= LARGEST)
    return values if possible.all() else np.where(possible, values, math.nan)


def _amount(value: float) -> float:
    return value if 0 <= value <= LARGEST else math.nan
