"""Spans of requests as columns: one row for the whole request and one for each of its stages, whoever traced it.

How an engine's spans tell of its stages is said by its dialect (span_dialects/). A request appears under a salted hash
only: an id that is a hash already (the bundled engine's) stays as it is, so that it meets the request table of the step
ring. Spans that cannot be told at once, because the rest of their tree is in another export, go to span_trees.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from ...model import OUTCOMES, Floats, Spans, Subject
from ...wire.otlp import ExportReader, OtlpLimits, Scope, SpanColumns
from ...wire.otlp.columns import Array
from .dialects import detect, wanted
from .dialects.dialect import Names, SpanDialect
from .stages import STAGE, facts_of, stages_of
from .trees import Root, Slice

SOURCE = "spans"
TOKENS = ("prompt_tokens", "output_tokens", "cached_tokens")
_OUTCOME = {name.encode(): index for index, name in enumerate(OUTCOMES) if name} | {
    b"aborted": 3,
    b"cancelled": 3,
    b"tool_calls": 1,
    b"eos_token": 1,
    b"stop_sequence": 1,
    b"eos": 1,
    b"max_tokens": 2,
    b"timeout": 4,
}
_ERROR, _REJECTED = OUTCOMES.index("error"), OUTCOMES.index("rejected")
_HASH = re.compile(rb"[0-9a-f]{16}")
_SERVER = 2
_HTTP_LIBRARIES = ("opentelemetry.instrumentation.", "io.opentelemetry.", "@opentelemetry/", "go.opentelemetry.io/")
"""Scopes of libraries that trace HTTP in front of an engine: their spans are not the engine's requests."""


class Decoded(msgspec.Struct, frozen=True, eq=False):
    """One export. `dropped` were cut or make no sense, `foreign` are spans of something else than requests.

    `reasons` names them: bad_ids, bad_times, too_many, attributes, unknown_engine, not_requests.
    `waiting` are pieces of trees for SpanTrees, `told` roots whose later slices it should know.
    """

    spans: tuple[Spans, ...]
    dropped: int
    foreign: int
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    waiting: tuple[Root | Slice, ...] = ()
    told: tuple[Root, ...] = ()

    @property
    def rows(self) -> int:
        """What it brings: rows, and pieces that wait to become some."""
        return sum(len(spans.start) for spans in self.spans) + len(self.waiting)


class SpanDecoder:
    """Turns exports into Spans.

    `subject_of` maps a resource to the engine meant. `is_named`: whether a resource names an engine that is watched;
    only then are spans of an unknown engine believed to be its requests. `resource` are further attributes to look at.
    """

    def __init__(
        self,
        subject_of: Callable[[Mapping[str, str]], Subject],
        salt: bytes,
        limits: OtlpLimits | None = None,
        is_named: Callable[[Mapping[str, str]], bool] = lambda _: True,
        resource: Sequence[str] = (),
    ) -> None:
        self._subject_of = subject_of
        self._is_named = is_named
        self._salt = salt[:64]
        self._reader = ExportReader(wanted(tuple(resource)), limits or OtlpLimits())
        self._names: dict[str, Names] = {}
        self._recognised: set[Subject] = set()
        self._with_children: set[str] = set()

    def decode(self, body: bytes, content_type: str, encoding: str = "") -> Decoded:
        """Decode one export. OtlpError (a ValueError) with a reason for what is none."""
        export = self._reader.read(body, content_type, encoding)
        out = _Output(Counter(too_many=export.cut_spans, attributes=export.cut_attributes))
        for scope in export.scopes:
            self._scope(scope, out)
        reasons = +out.reasons
        dropped = sum(reasons[reason] for reason in ("bad_ids", "bad_times", "too_many"))
        foreign = reasons["not_requests"] + reasons["unknown_engine"]
        return Decoded(
            tuple(spans for spans in out.spans if len(spans.start)),
            dropped,
            foreign,
            reasons,
            tuple(out.waiting),
            tuple(out.told),
        )

    def _scope(self, scope: Scope, out: _Output) -> None:
        spans = scope.spans
        start, end = spans.start_ns / 1e9, spans.end_ns / 1e9
        timed = (spans.start_ns > 0) & (spans.end_ns >= spans.start_ns)
        good = spans.ids_good & timed
        out.reasons["bad_ids"] += spans.count - int(spans.ids_good.sum())
        out.reasons["bad_times"] += int((spans.ids_good & ~timed).sum())
        if not good.any():
            return
        subject = self._subject_of(scope.resource)
        dialect = detect(scope.scope, scope.resource, spans)
        if dialect is None:
            self._unknown(scope, subject, good, start, end, out)
            return
        self._recognise(subject)
        if dialect.name not in self._names:
            self._names[dialect.name] = Names(dialect)
        meanings = [self._names[dialect.name].of(name) for name in spans.names]
        root, stage, belongs = (np.array([m[i] for m in meanings])[spans.name] for i in range(3))
        is_root = root & good & _has(dialect.root_has, spans)
        is_part = belongs & good & ~is_root
        out.reasons["not_requests"] += int((good & ~is_root & ~is_part).sum())
        whole = _Whole(self._salt, dialect, spans, np.flatnonzero(is_root), subject, start, end, scope.scope)
        parts = np.flatnonzero(is_part)
        if dialect.scattered:
            out.waiting += whole.roots(np.arange(len(whole.rows)))
            out.waiting += self._slices(dialect, spans, parts, stage, subject, start, end)
        else:
            self._near(dialect, whole, spans, parts, stage, subject, start, end, out)

    def _near(
        self, dialect: SpanDialect, whole: _Whole, spans: SpanColumns, parts: Array, stage: Array, subject: Subject,
        start: Floats, end: Floats, out: _Output,
    ) -> None:  # fmt: skip
        """A dialect whose stages, if it has any, are children of the root: told here where both are in one scope."""
        if len(parts):
            self._with_children.add(dialect.name)
        row_of = {int(span): i for i, span in enumerate(spans.span[whole.rows])} if len(parts) else {}
        parent = np.array([row_of.get(int(p), -1) for p in spans.parent[parts]], np.intp)
        near = (parent >= 0) & (stage[parts] != "")
        has_children = np.zeros(len(whole.rows), bool)
        has_children[parent[near]] = True
        may_have = dialect.has_children or dialect.name in self._with_children
        waits = ~has_children & (whole.outcome != _REJECTED) & may_have
        alone = ~has_children & ~waits
        told = [whole.columns(np.flatnonzero(~waits)), *whole.stages(alone)]
        if near.any():
            in_time = np.argsort(start[parts[near]], kind="stable")
            rows, of = parts[near][in_time], parent[near][in_time]
            codes = np.array([STAGE[s] for s in stage[rows].tolist()], np.uint8)
            told.append(whole.columns_of(of, codes, start[rows], end[rows]))
            out.told += whole.roots(np.flatnonzero(has_children))
        out.spans.append(_joined(subject, told))
        out.waiting += whole.roots(np.flatnonzero(waits))
        out.waiting += self._slices(dialect, spans, parts[~near], stage, subject, start, end)

    def _slices(
        self, dialect: SpanDialect, spans: SpanColumns, rows: Array, stage: Array, subject: Subject, start: Floats,
        end: Floats,
    ) -> list[Slice]:  # fmt: skip
        ranks = facts_of(dialect, spans, rows)["rank"]
        retracted: dict[int, list[float]] = {}
        for row, name, at_ns in spans.events:
            if name == dialect.retracted.encode():
                retracted.setdefault(row, []).append(at_ns / 1e9)
        slices = []
        for i, row in enumerate(rows.tolist()):
            name = spans.names[spans.name[row]]
            parent, trace = int(spans.parent[row]), int(spans.trace[row])
            orphan = self.hashed((parent or trace).to_bytes(8, "big"))
            slices.append(
                Slice(
                    trace, int(spans.span[row]), parent, subject, orphan, str(stage[row]), float(start[row]),
                    float(end[row]), name, dialect.first_stages.get(name.decode("utf-8", "replace"), ""),
                    float(ranks[i]), tuple(retracted.get(row, ())),
                )
            )  # fmt: skip
        return slices

    def _unknown(self, scope: Scope, subject: Subject, good: Array, start: Floats, end: Floats, out: _Output) -> None:
        """Spans of an engine that nobody knows: its server spans are requests, nothing more is to be had from them."""
        spans = scope.spans
        out.reasons["unknown_engine"] += int(good.sum())
        if scope.scope.startswith(_HTTP_LIBRARIES) or subject in self._recognised or not self._is_named(scope.resource):
            return
        rows = np.flatnonzero(good & (spans.kind == _SERVER))
        if len(rows):
            keys = [self.hashed(int(span).to_bytes(8, "big")) for span in spans.span[rows]]
            outcome = np.where(spans.failed[rows], _ERROR, 0)
            out.spans.append(_joined(subject, [_columns(keys, start[rows], end[rows], outcome)]))

    def _recognise(self, subject: Subject) -> None:
        if len(self._recognised) < 10_000:
            self._recognised.add(subject)

    def hashed(self, id_: bytes) -> int:
        """The salted hash of an id."""
        return int.from_bytes(blake2b(id_, digest_size=8, key=self._salt).digest(), "little")


class _Output:
    """What the scopes of one export bring."""

    def __init__(self, reasons: Counter[str]) -> None:
        self.reasons = reasons
        self.spans: list[Spans] = []
        self.waiting: list[Root | Slice] = []
        self.told: list[Root] = []


class _Whole:
    """The roots of one scope: keys, facts, outcomes."""

    def __init__(
        self, salt: bytes, dialect: SpanDialect, spans: SpanColumns, rows: Array, subject: Subject,
        start: Floats, end: Floats, scope: str,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.start, self.end = start[rows], end[rows]
        self.facts = facts_of(dialect, spans, rows)
        self._dialect, self._spans, self._subject = dialect, spans, subject
        keep_hashes = dialect.hashed_ids and scope.startswith(dialect.scopes)
        self.keys = _keys(salt, dialect, spans, rows, keep_hashes)
        self.outcome = _outcomes(dialect, spans, rows)

    def columns(self, of: Array) -> _Part:
        """Rows of the whole requests `of`."""
        part = self.columns_of(of, np.full(len(of), STAGE["request"], np.uint8), self.start[of], self.end[of])
        return part | {"outcome": self.outcome[of]}

    def columns_of(self, of: Array, stage: Array, start: Floats, end: Floats) -> _Part:
        """Rows of stages of the requests `of`; tokens are the request's."""
        part = {name: self.facts[name][of] for name in TOKENS}
        outcome = np.zeros(len(of), np.uint8)
        return part | {"request": self.keys[of], "stage": stage, "start": start, "end": end, "outcome": outcome}

    def stages(self, shown: Array) -> list[_Part]:
        """Rows of the stages that follow from the attributes of the requests that are shown."""
        if not shown.any():
            return []
        parts = []
        for name, of, start, end in stages_of(self._dialect, self.facts, self.start, self.end):
            code = np.full(len(of), STAGE[name], np.uint8)
            part = self.columns_of(of, code, start, end)
            parts.append(part if shown.all() else {key: column[shown[of]] for key, column in part.items()})
        return parts

    def roots(self, kept: Array) -> list[Root]:
        """The roots one by one, with the stages that follow from their attributes."""
        if not len(kept):
            return []
        stages: dict[int, list[tuple[str, float, float]]] = {}
        for name, of, start, end in stages_of(self._dialect, self.facts, self.start, self.end):
            for i, a, b in zip(of.tolist(), start.tolist(), end.tolist(), strict=True):
                stages.setdefault(i, []).append((name, a, b))
        tokens = list(zip(*(self.facts[name].tolist() for name in TOKENS), strict=True))
        return [
            Root(
                int(self._spans.trace[self.rows[i]]), int(self._spans.span[self.rows[i]]), self._subject,
                int(self.keys[i]), float(self.start[i]), float(self.end[i]), tokens[i], int(self.outcome[i]),
                tuple(stages.get(i, ())),
            )
            for i in kept.tolist()
        ]  # fmt: skip


_Part = dict[str, Array]
_COLUMNS = ("request", "stage", "start", "end", *TOKENS, "outcome")


def _keys(salt: bytes, dialect: SpanDialect, spans: SpanColumns, rows: Array, keep_hashes: bool) -> Array:
    """Salted hashes of the requests' ids; of their span ids where they have none.

    A client's trace may hold many requests, the id of a span never does.
    """
    ids = [b""] * len(rows)
    for attribute in reversed(dialect.request_id):
        column = spans.texts.get(attribute)
        if column and len(rows) == len(column):
            ids = column if all(column) else [said or id_ for said, id_ in zip(column, ids, strict=True)]
        elif column:
            ids = [column[row] or id_ for row, id_ in zip(rows.tolist(), ids, strict=True)]
    if not all(ids):
        own = spans.span[rows].tolist()
        ids = [id_ or span.to_bytes(8, "big") for id_, span in zip(ids, own, strict=True)]
    digests = [blake2b(id_, digest_size=8, key=salt).digest() for id_ in ids]
    keys = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    if keep_hashes:
        for i, id_ in enumerate(ids):
            if _HASH.fullmatch(id_):
                keys[i] = int(id_, 16)
    return keys


def _outcomes(dialect: SpanDialect, spans: SpanColumns, rows: Array) -> Array:
    """Outcome codes; an error where a span failed and says no more."""
    codes = np.zeros(len(rows), np.uint8)
    for attribute in dialect.outcome:
        if column := spans.texts.get(attribute):
            codes = np.array([_OUTCOME.get(column[row].lower(), 0) for row in rows.tolist()], np.uint8)
    failed = spans.failed[rows]
    if column := spans.texts.get("error.type"):
        failed = failed | np.array([bool(column[row]) for row in rows.tolist()], bool)
    return np.where((codes == 0) & failed, np.uint8(_ERROR), codes).astype(np.uint8)


def _has(attribute: str, spans: SpanColumns) -> Array:
    """Which spans have an attribute; all where none is asked for."""
    if not attribute:
        return np.ones(spans.count, bool)
    if (numbers := spans.numbers.get(attribute)) is not None:
        return ~np.isnan(numbers)
    return np.array([bool(text) for text in spans.texts.get(attribute, [b""] * spans.count)], bool)


def _columns(keys: Sequence[int], start: Floats, end: Floats, outcome: Array) -> _Part:
    nothing = {name: np.full(len(keys), math.nan) for name in TOKENS}
    stage = np.full(len(keys), STAGE["request"], np.uint8)
    return nothing | {
        "request": np.array(keys, np.uint64), "stage": stage, "start": start, "end": end,
        "outcome": outcome.astype(np.uint8),
    }  # fmt: skip


def _joined(subject: Subject, parts: Sequence[_Part]) -> Spans:
    return Spans(subject, SOURCE, *(np.concatenate([part[name] for part in parts]) for name in _COLUMNS))
