"""Step records as a Frame: the columns of docs/ring.md under the catalogue's names, and what follows from them.

Shared by the ring's reader and by captures. Rows are stamped with the step's `ended_at` (unix seconds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...catalog import STEP_SIGNALS
from ...model import Floats, Frame, LiveRequests, OpenStep, Subject

SOURCE = "steps"


def step_frame(subject: Subject, columns: Mapping[str, Floats], block_tokens: float = math.nan) -> Frame | None:
    """A frame of completed steps; None where there are none, or nothing is known of them. ValueError without `ended_at`.

    A column in which nothing is known is left out: an engine that cannot tell is no source of that signal.
    """
    ended = columns.get("ended_at")
    if ended is None:
        raise ValueError("no column ended_at")
    if not len(ended):
        return None
    signals = {signal: columns[field] for field, signal in STEP_SIGNALS.items() if field in columns}
    if "begun_at" in columns:
        signals["step_seconds"] = ended - columns["begun_at"]
    signals = {signal: values for signal, values in signals.items() if not np.isnan(values).all()}
    used, total = columns.get("kv_used_blocks"), columns.get("kv_total_blocks")
    if total is not None:
        for field, signal in _SHARES:
            if field in columns and signal not in signals:
                signals[signal] = _ratio(columns[field], total)
    if used is not None and "kv_slots_unused" in columns and block_tokens > 0:
        signals["kv_internal_fragmentation_ratio"] = _ratio(columns["kv_slots_unused"], used * block_tokens)
    if not signals:
        return None
    return Frame(subject, SOURCE, tuple(signals), ended, np.stack(list(signals.values()), axis=1))


def open_step(subject: Subject, at: float, fields: Mapping[str, float]) -> OpenStep | None:
    """The step that has begun and not ended at `at`; None where it does not say when it began."""
    begun_at = fields.get("begun_at", math.nan)
    if not begun_at > 0:
        return None
    return OpenStep(
        subject, at, begun_at,
        fields.get("prefill_tokens", math.nan), fields.get("decode_tokens", math.nan),
        fields.get("running", math.nan), fields.get("waiting", math.nan),
    )  # fmt: skip


def live_requests(
    subject: Subject, at: float, ids: np.typing.NDArray[np.uint64], columns: Mapping[str, Floats]
) -> LiveRequests:
    """The live request table; columns that are missing are NaN."""
    unknown = np.full(len(ids), math.nan)
    return LiveRequests(subject, at, ids, *(columns.get(name, unknown) for name in _REQUEST_COLUMNS))


_SHARES = (
    ("kv_used_blocks", "kv_usage_ratio"),
    ("kv_cached_blocks", "kv_cached_ratio"),
    ("kv_reserved_blocks", "kv_reserved_unused_ratio"),
)
_REQUEST_COLUMNS = (
    "arrived_at", "stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions",
)  # fmt: skip


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part ÷ whole, NaN where the whole is zero, and never outside 0–1: a torn record would otherwise be believed."""
    ratio: Floats = np.divide(part, whole, out=np.full(len(part), math.nan), where=whole > 0)
    ratio[(ratio < 0) | (ratio > 1)] = math.nan
    return ratio
