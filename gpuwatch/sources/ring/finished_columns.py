"""Requests that a step ring says have finished (docs/ring.md, table *finished*), as spans of their stages.

The ring has durations, not times: queue, prefill and decode are the engine's, the whole is the front end's. The last
token ends a request, so the stages are laid out backwards from `finished_at`; what is left before them is preprocessing
and the way to the engine, the way back of the last token included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...model import OUTCOMES, STAGES, Floats, Spans, Subject
from .step_columns import SOURCE

_SHORTEST_S = 1e-4
_LONGEST_S = 1e7
_STOP = OUTCOMES.index("stop")
_OUTCOME_OF = np.array(
    [0, _STOP, OUTCOMES.index("length"), OUTCOMES.index("abort"), OUTCOMES.index("error"), _STOP], np.uint8
)
"""Of each reason of docs/ring.md; one that is not known is none."""
_TOKENS = ("prompt_tokens", "generated_tokens", "cached_tokens")


def finished_spans(subject: Subject, columns: Mapping[str, Floats], since: float = -math.inf) -> Spans | None:
    """Spans of the requests that finished after `since`; None where there are none or no stage is known."""
    finished_at = columns["finished_at"]
    recent = finished_at > since
    if not recent.any():
        return None
    rows = {name: values[recent] for name, values in columns.items()}
    end = rows["finished_at"]
    unknown = np.full(len(end), math.nan)
    whole, queue, prefill, decode = (_seconds(rows.get(name, unknown)) for name in _DURATIONS)
    begun = end - whole
    decode_at = np.maximum(end - np.nan_to_num(decode), begun)
    prefill_at = np.maximum(decode_at - prefill, begun)
    queue_at = np.maximum(prefill_at - queue, begun)
    parts = [
        _part(STAGES.index("request"), begun, end, ~np.isnan(whole)),
        _part(STAGES.index("preprocess"), begun, queue_at, queue_at - begun > _SHORTEST_S),
        _part(STAGES.index("queue"), queue_at, prefill_at, ~np.isnan(queue)),
        _part(STAGES.index("prefill"), prefill_at, decode_at, ~np.isnan(prefill)),
        _part(STAGES.index("decode"), decode_at, end, decode > 0),
    ]
    row, stage, start, until = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(row):
        return None
    outcome = np.where(stage == STAGES.index("request"), _outcomes(rows.get("reason", unknown))[row], 0)
    prompt, generated, cached = (rows.get(name, unknown)[row] for name in _TOKENS)
    ids = _ids(rows.get("id", unknown))[row]
    return Spans(subject, SOURCE, ids, stage, start, until, prompt, generated, cached, outcome.astype(np.uint8))


_DURATIONS = ("e2e_seconds", "queue_seconds", "prefill_seconds", "decode_seconds")
_Part = tuple[NDArray[np.intp], NDArray[np.uint8], Floats, Floats]


def _part(stage: int, start: Floats, end: Floats, known: NDArray[np.bool_]) -> _Part:
    """One stage of the requests whose times are known: their rows, the stage's code, start and end."""
    row = np.flatnonzero(known & ~np.isnan(start) & ~np.isnan(end))
    return row, np.full(len(row), stage, np.uint8), start[row], end[row]


def _seconds(values: Floats) -> Floats:
    return np.where((values >= 0) & (values < _LONGEST_S), values, math.nan)


def _ids(values: Floats) -> NDArray[np.uint64]:
    possible = (values >= 1) & (values < 1 << 53)
    return np.where(possible, values, 0).astype(np.uint64)


def _outcomes(reasons: Floats) -> NDArray[np.uint8]:
    known = (reasons >= 0) & (reasons < len(_OUTCOME_OF))
    return _OUTCOME_OF[np.where(known, reasons, 0).astype(np.intp)]
