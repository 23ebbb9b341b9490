"""Stages of a request from what its one span says: durations as attributes, laid out from its start.

Durations of the engine (queue, prefill, decode) and of the front end (time to first token, whole) are on two clocks, so
what remains between them is noise below a tenth of a millisecond. What is not said and does not follow is left out:
a missing stage is not one of zero seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from ...model import STAGES, Floats
from ...wire.otlp import SpanColumns
from ...wire.otlp.columns import Array
from .dialects.dialect import FACTS, Said, SpanDialect

STAGE = {name: index for index, name in enumerate(STAGES)}
SHORTEST_S = 1e-4

_LONGEST_S = 1e7
_MOST_TOKENS = 1e12
_RUST_DURATION = re.compile(rb"(\d{1,15}(?:\.\d{1,12})?)(ns|\xc2\xb5s|\xce\xbcs|us|ms|s)")
_UNITS = {b"ns": 1e-9, b"\xc2\xb5s": 1e-6, b"\xce\xbcs": 1e-6, b"us": 1e-6, b"ms": 1e-3, b"s": 1.0}

Piece = tuple[str, Array, Array, Array]
"""Name of a stage, rows that have it, their starts and their ends."""


def facts_of(dialect: SpanDialect, spans: SpanColumns, rows: Array) -> dict[str, Floats]:
    """Every fact of these rows; NaN where it is missing, negative (two clocks disagree) or absurd."""
    return {fact: _said(dialect.facts.get(fact), fact, spans, rows) for fact in FACTS}


def _said(said: Said | None, fact: str, spans: SpanColumns, rows: Array) -> Floats:
    values: Floats | None = None
    for attribute in said.attributes if said else ():
        column = _durations(spans, attribute) if said and said.as_text else spans.numbers.get(attribute)
        if column is None:
            continue
        found = column[rows] if len(rows) != len(column) else column
        values = found if values is None else np.where(np.isnan(values), found, values)
    if values is None or said is None:
        return np.full(len(rows), math.nan)
    values = values * said.factor if said.factor != 1.0 else values
    limit = _LONGEST_S if fact.endswith("_s") else _MOST_TOKENS
    with np.errstate(invalid="ignore"):
        return np.where((values >= 0) & (values < limit), values, math.nan)


def _durations(spans: SpanColumns, attribute: str) -> Floats | None:
    texts = spans.texts.get(attribute)
    return None if texts is None else np.array([duration_s(text) for text in texts], np.float64)


def duration_s(text: bytes) -> float:
    """Seconds of a duration with its unit, such as `12.5ms`; NaN for anything else."""
    found = _RUST_DURATION.fullmatch(text.strip(b'"'))
    return float(found[1]) * _UNITS[found[2]] if found else math.nan


def stages_of(dialect: SpanDialect, facts: dict[str, Floats], start: Floats, end: Floats) -> list[Piece]:
    """The stages of whole requests that begin and end there, in the order of their lives, never outside the request."""
    ttft, queue, decode, front = (facts[name] for name in ("ttft_s", "queue_s", "decode_s", "front_s"))
    transfer, prefill = facts["transfer_s"], facts["prefill_s"]
    if dialect.prefill_holds_queue:
        front = np.where(np.isnan(front), ttft - prefill, front)
        prefill = prefill - queue
    before_token = _or_zero(front) + _or_zero(transfer)
    prefill = np.where(np.isnan(prefill), ttft - queue - before_token, prefill)
    whole = np.where(np.isnan(facts["e2e_s"]), end - start, facts["e2e_s"])
    decode = np.where(np.isnan(decode), whole - ttft, decode)
    chained = ~np.isnan(queue) & (prefill >= 0)  # all that lies before the first token is known
    rest = np.where(chained, ttft - queue - prefill - _or_zero(transfer), math.nan)
    front = np.maximum(np.where(np.isnan(front), rest, front), 0.0)
    pieces: list[Piece] = []
    at = start
    lengths = (
        ("preprocess", front),
        ("queue", queue),
        ("prefill", np.where(chained, prefill, math.nan)),
        ("transfer", transfer),
    )
    for name, length in lengths:
        until = np.minimum(at + _or_zero(length), end)
        shown = length > (SHORTEST_S if name == "preprocess" else 0.0)
        pieces.append((name, *_shown(shown, at, until)))
        at = until
    first = np.where(chained, at, np.minimum(start + ttft, end))
    until = np.minimum(first + decode, end)
    pieces.append(("decode", *_shown(decode > 0, first, until)))
    pieces.append(("postprocess", *_shown((decode > 0) & (end - until > SHORTEST_S), until, end)))
    return [piece for piece in pieces if len(piece[1])]


def _or_zero(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _shown(shown: Array, start: Floats, end: Floats) -> tuple[Array, Floats, Floats]:
    rows = np.flatnonzero(shown & ~np.isnan(start) & ~np.isnan(end))
    return rows, start[rows], end[rows]


PRECEDENCE = ("decode", "postprocess", "preprocess", "queue", "requeue", "transfer", "prefill")
"""Which of two slices that overlap is what the request was doing: the later one of this list."""


def painted(
    slices: Sequence[tuple[str, float, float]], retracted: Sequence[float], end: float
) -> list[tuple[str, float, float]]:
    """One stage at each moment, from slices that nest, overlap and repeat on several ranks. Unix seconds.

    From a retraction until the next prefill begins the request waits again. A wait after the first prefill without a
    retraction before it is a gap in the output: decoding. Neighbours of one stage are joined, with what lies between.
    """
    marks: list[tuple[float, int, int]] = []
    prefills = sorted((a, b) for stage, a, b in slices if stage == "prefill")
    decoding_from = prefills[0][1] if prefills else math.inf
    waits_again = [(at, next((a for a, _ in prefills if a > at), end)) for at in sorted(set(retracted))]
    for stage, a, b in [*slices, *(("requeue", a, b) for a, b in waits_again)]:
        if stage == "queue" and a >= decoding_from:
            stage = "requeue" if any(since <= a < until for since, until in waits_again) else "decode"
        if b > a and stage in PRECEDENCE:
            marks.append((a, 1, PRECEDENCE.index(stage)))
            marks.append((b, -1, PRECEDENCE.index(stage)))
    marks.sort()
    open_ = [0] * len(PRECEDENCE)
    shown: list[tuple[str, float, float]] = []
    at = 0.0
    for time, step, stage_index in marks:
        top = next((i for i in range(len(PRECEDENCE) - 1, -1, -1) if open_[i]), None)
        if top is not None and time > at:
            name = PRECEDENCE[top]
            if shown and shown[-1][0] == name:
                shown[-1] = (name, shown[-1][1], time)
            else:
                shown.append((name, at, time))
        open_[stage_index] += step
        at = time
    return shown
