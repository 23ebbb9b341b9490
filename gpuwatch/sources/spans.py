"""Spans of requests as columns: one row for the whole request and one for each of its stages, whoever traced it.

vLLM sends one `llm_request` span with latencies as attributes; the stages are rebuilt from them. The bundled engine
sends a parent and a child span for each stage. A request appears under a salted hash only: an id that is a hash already
(the bundled engine's) stays as it is, so that it meets the request table of the step ring. `SpanInbox` is where the
HTTP server puts spans and where the agent polls them.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model import OUTCOMES, STAGES, Batch, Floats, Spans, Subject
from .otlp import OtlpLimits, RawSpan, Scope, read_export

SOURCE = "spans"
_REQUEST = "llm_request"
_HASHED_SCOPES = frozenset({"engine_shim"})
_STAGE = {name: index for index, name in enumerate(STAGES)}
_OUTCOME = {name: index for index, name in enumerate(OUTCOMES) if name} | {
    "aborted": 3,
    "cancelled": 3,
    "tool_calls": 1,
}
_SHORTEST_S = 1e-4
_HASH = re.compile("[0-9a-f]{16}")
_LATENCIES = ("ttft_s", "queue_s", "prefill_s", "decode_s")
_TOKENS = ("prompt_tokens", "output_tokens", "cached_tokens")


class Decoded(msgspec.Struct, frozen=True, eq=False):
    """One export. `dropped` were cut or make no sense, `foreign` are spans of something else than requests."""

    spans: tuple[Spans, ...]
    dropped: int
    foreign: int


class SpanDecoder:
    """Turns exports into Spans. `subject_of` maps a resource (service.name, service.instance.id, shim.rank)."""

    def __init__(
        self, subject_of: Callable[[Mapping[str, str]], Subject], salt: bytes, limits: OtlpLimits | None = None
    ) -> None:
        self._subject_of = subject_of
        self._salt = salt[:64]
        self._limits = limits or OtlpLimits()

    def decode(self, body: bytes, content_type: str, encoding: str = "") -> Decoded:
        """Decode one export. OtlpError (a ValueError) with a reason for what is none."""
        scopes, dropped = read_export(body, content_type, encoding, self._limits)
        found: list[Spans] = []
        foreign = 0
        for scope in scopes:
            spans, bad, other = self._scope(scope)
            dropped += bad
            foreign += other
            if len(spans.start):
                found.append(spans)
        return Decoded(tuple(found), dropped, foreign)

    def _scope(self, scope: Scope) -> tuple[Spans, int, int]:
        """Spans of one scope, how many make no sense, and how many are of something else."""
        requests = [span for span in scope.spans if span.name == _REQUEST]
        children = [span for span in scope.spans if span.name in _STAGE and span.name != "request"]
        keys = [self._hash(scope, span) for span in requests]
        row_of = {span.span_id: row for row, span in enumerate(requests)}
        parents = [row_of.get(span.parent_id, -1) for span in children]
        child_keys = [
            keys[row] if row >= 0 else self._hashed(span.parent_id or span.trace_id)
            for row, span in zip(parents, children, strict=True)
        ]
        whole = _requests(requests, keys)
        has_children = np.zeros(len(requests), bool)
        has_children[[row for row in parents if row >= 0]] = True
        parts = [whole, _children(children, child_keys, parents, whole)]
        parts += _stages(requests, whole, ~has_children)
        rows = _joined(self._subject_of(scope.resource), parts)
        good = (rows.start > 0) & (rows.end >= rows.start)
        bad = int((~good).sum())
        return rows if not bad else _only(rows, good), bad, len(scope.spans) - len(requests) - len(children)

    def _hash(self, scope: Scope, span: RawSpan) -> int:
        id_ = span.texts.get("request_id")
        if not id_:
            return self._hashed(span.span_id)  # a client's trace may span many requests, its span id never does
        if scope.scope in _HASHED_SCOPES and _HASH.fullmatch(id_):
            return int(id_, 16)
        return self._hashed(id_.encode())

    def _hashed(self, id_: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(id_, digest_size=8, key=self._salt).digest(), "little")


class SpanInbox:
    """A bounded, thread-safe mailbox between the OTLP server and the agent: `put` there, `poll` here."""

    role = "spans"
    name = "spans"

    def __init__(self, subject: Subject, most_rows: int = 20_000, interval_s: float = 0.5) -> None:
        self.subject = subject
        self.interval_s = interval_s
        self._most_rows = most_rows
        self._lock = threading.Lock()
        self._waiting: deque[Spans] = deque()
        self._rows = 0
        self._dropped = 0

    def put(self, decoded: Decoded) -> bool:
        """Take an export. False, and its rows are counted as dropped, where the mailbox is full: answer 503."""
        rows = sum(len(spans.start) for spans in decoded.spans)
        with self._lock:
            self._dropped += decoded.dropped
            if rows and self._rows + rows > self._most_rows:
                self._dropped += rows
                return False
            self._waiting.extend(decoded.spans)
            self._rows += rows
            return True

    async def poll(self, now: float) -> Batch:
        """Everything that has come since the last poll."""
        return self.take(now)

    def take(self, now: float) -> Batch:
        """As `poll`, for those who do not wait."""
        with self._lock:
            spans, dropped = tuple(self._waiting), self._dropped
            self._waiting.clear()
            self._rows = self._dropped = 0
        return Batch(self.name, self.role, self.subject, now, spans=spans, dropped=dropped)

    async def aclose(self) -> None:
        """Nothing is open."""


_Part = dict[str, "NDArray[Any]"]


def _requests(spans: Sequence[RawSpan], keys: Sequence[int]) -> _Part:
    """Columns of whole requests."""
    part = {name: _numbers(spans, name, 1e12) for name in _TOKENS}
    return part | {
        "request": np.array(keys, np.uint64),
        "stage": np.full(len(spans), _STAGE["request"], np.uint8),
        "start": np.array([span.start_ns for span in spans], np.float64) / 1e9,
        "end": np.array([span.end_ns for span in spans], np.float64) / 1e9,
        "outcome": np.array([_outcome(span) for span in spans], np.uint8),
    }


def _children(spans: Sequence[RawSpan], keys: Sequence[int], parents: Sequence[int], whole: _Part) -> _Part:
    """Columns of stage spans; their tokens are their parents', NaN where the parent is in another export."""
    row = np.array(parents, np.intp)
    part = {name: np.append(whole[name], math.nan)[row] for name in _TOKENS}  # row −1 is the NaN at the end
    return part | {
        "request": np.array(keys, np.uint64),
        "stage": np.array([_STAGE[span.name] for span in spans], np.uint8),
        "start": np.array([span.start_ns for span in spans], np.float64) / 1e9,
        "end": np.array([span.end_ns for span in spans], np.float64) / 1e9,
        "outcome": np.zeros(len(spans), np.uint8),
    }


def _stages(spans: Sequence[RawSpan], whole: _Part, alone: NDArray[np.bool_]) -> list[_Part]:
    """Stages of single spans, rebuilt from their latencies.

    What remains of the TTFT beside queue and prefill lies before them (preprocessing and the way to the engine), what
    remains at the end is postprocessing. Queue, prefill and decode are on the engine's clock, TTFT on the front end's,
    so remainders below a tenth of a millisecond are noise.
    """
    ttft, queue, prefill, decode = (_numbers(spans, name, 1e7) for name in _LATENCIES)
    alone = alone & ~np.isnan(queue) & ~np.isnan(prefill)
    if not alone.any():
        return []
    before = np.nan_to_num(np.maximum(ttft - queue - prefill, 0.0))
    at, end = whole["start"], whole["end"]
    parts: list[_Part] = []
    lengths = (("preprocess", before), ("queue", queue), ("prefill", prefill), ("decode", np.nan_to_num(decode)))
    for name, length in lengths:
        until = np.minimum(at + length, end)
        shown = alone & (length > (_SHORTEST_S if name == "preprocess" else 0.0))
        parts.append(_stage(whole, name, at, until, shown))
        at = np.where(alone, until, at)
    parts.append(_stage(whole, "postprocess", at, end, alone & (end - at > _SHORTEST_S) & (decode > 0)))
    return parts


def _stage(whole: _Part, name: str, start: Floats, end: Floats, shown: NDArray[np.bool_]) -> _Part:
    count = int(shown.sum())
    part = {column: whole[column][shown] for column in ("request", *_TOKENS)}
    codes = {"stage": np.full(count, _STAGE[name], np.uint8), "outcome": np.zeros(count, np.uint8)}
    return part | codes | {"start": start[shown], "end": end[shown]}


def _numbers(spans: Sequence[RawSpan], name: str, limit: float) -> Floats:
    """One numeric attribute of each span; NaN where it is missing, negative (two clocks disagree) or absurd."""
    values = np.array([span.numbers.get(name, math.nan) for span in spans], np.float64)
    values[~((values >= 0) & (values < limit))] = math.nan
    return values


def _outcome(span: RawSpan) -> int:
    code = _OUTCOME.get(span.texts.get("outcome", ""), 0)
    return _OUTCOME["error"] if not code and (span.failed or "error" in span.texts) else code


def _joined(subject: Subject, parts: Sequence[_Part]) -> Spans:
    return Spans(subject, SOURCE, *(np.concatenate([part[name] for part in parts]) for name in _COLUMNS))


def _only(spans: Spans, kept: NDArray[np.bool_]) -> Spans:
    return Spans(spans.subject, spans.source, *(getattr(spans, name)[kept] for name in _COLUMNS))


_COLUMNS = ("request", "stage", "start", "end", *_TOKENS, "outcome")
