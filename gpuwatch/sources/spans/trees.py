"""Spans whose request is not known yet: held by trace until the tree is quiet, then told as stages of one request.

A tree is looked at `QUIET_S` after its last span came, or `HOLD_S` after its first. What comes after that still finds
its request for `REMEMBER_S`. Held spans are bounded: beyond, the oldest trees are told as they are. Time is an argument.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from ...model import Spans, Subject
from .stages import STAGE, painted

QUIET_S = 2.0
HOLD_S = 10.0
REMEMBER_S = 30.0
MOST_SPANS = 50_000
MOST_REMEMBERED = 50_000
_DEEPEST = 32
_MOST_SLICES = 20_000


class Root(msgspec.Struct, frozen=True):
    """A request's own span. `stages` follow from its attributes: used where no slice says more."""

    trace: int
    span: int
    subject: Subject
    request: int
    start: float
    end: float
    tokens: tuple[float, float, float]
    outcome: int
    stages: tuple[tuple[str, float, float], ...] = ()


class Slice(msgspec.Struct, frozen=True):
    """A span below a root. `stage` is "" for one that only holds others, `first_stage` what the first of its name is."""

    trace: int
    span: int
    parent: int
    subject: Subject
    orphan_request: int
    stage: str
    start: float
    end: float
    name: bytes = b""
    first_stage: str = ""
    rank: float = math.nan
    retracted: tuple[float, ...] = ()


class _Told(msgspec.Struct):
    """A root that has been told, for slices that come later."""

    root: Root
    at: float
    by_attributes: bool


class _Tree:
    """What has come of one trace."""

    def __init__(self, now: float) -> None:
        self.first_at = now
        self.last_at = now
        self.roots: dict[int, Root] = {}
        self.slices: list[Slice] = []


class SpanTrees:
    """`add` what came, `take` what is complete. `counts`: late, cut (slices)."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._trees: dict[int, _Tree] = {}
        self._told: dict[tuple[int, int], _Told] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Spans that wait."""
        return self._held

    def add(self, pieces: Iterable[Root | Slice], now: float) -> None:
        """Take roots and slices that came by `now`."""
        for piece in pieces:
            tree = self._trees.get(piece.trace)
            if tree is None:
                tree = self._trees[piece.trace] = _Tree(now)
            tree.last_at = now
            if isinstance(piece, Root):
                tree.roots[piece.span] = piece
            elif len(tree.slices) < _MOST_SLICES:
                tree.slices.append(piece)
            else:
                self.counts["cut"] += 1
                continue
            self._held += 1

    def remember(self, roots: Iterable[Root], now: float) -> None:
        """Roots that were told with their slices; later ones of theirs will find them."""
        for root in roots:
            self._told[root.trace, root.span] = _Told(root, now, by_attributes=False)

    def take(self, now: float) -> list[Spans]:
        """The rows of every tree that is quiet, old, or one too many."""
        ready = [trace for trace, tree in self._trees.items() if self._is_ready(tree, now)]
        excess = self._held - MOST_SPANS
        for trace, tree in self._trees.items() if excess > 0 else ():
            if excess <= 0:
                break
            excess -= len(tree.roots) + len(tree.slices)
            ready.append(trace)
        rows: dict[Subject, list[_Row]] = {}
        for trace in dict.fromkeys(ready):
            tree = self._trees.pop(trace)
            self._held -= len(tree.roots) + len(tree.slices)
            self._tell(tree, now, rows)
        self._forget(now)
        return [_spans(subject, some) for subject, some in rows.items()]

    def _is_ready(self, tree: _Tree, now: float) -> bool:
        if now - tree.first_at >= HOLD_S:
            return True
        if tree.roots:
            return now - tree.last_at >= QUIET_S
        parents = {s.span: s.parent for s in tree.slices}
        return all(self._told_root(s, parents) is not None for s in tree.slices)

    def _told_root(self, piece: Slice, parents: dict[int, int]) -> _Told | None:
        at = piece.parent
        for _ in range(_DEEPEST):
            told = self._told.get((piece.trace, at))
            if told is not None:
                return told
            at = parents.get(at, 0)
            if not at:
                return None
        return None

    def _tell(self, tree: _Tree, now: float, rows: dict[Subject, list[_Row]]) -> None:
        parents = {s.span: s.parent for s in tree.slices}
        below: dict[int, list[Slice]] = {span: [] for span in tree.roots}
        for piece in tree.slices:
            above = _ancestor(piece.parent, parents, tree.roots)
            if above:
                below[above].append(piece)
            elif (known := self._told_root(piece, parents)) is not None:
                self._late(piece, known, rows)
            elif piece.stage:
                row = _row(piece.orphan_request, piece.stage, piece.start, piece.end)
                rows.setdefault(piece.subject, []).append(row)
        for span, root in tree.roots.items():
            subject, stages, by_attributes = _request(root, below[span])
            rows.setdefault(subject, []).extend(_rows(root, stages))
            told = _Told(msgspec.structs.replace(root, subject=subject), now, by_attributes)
            self._told[root.trace, span] = told
            for piece in below[span]:
                if not piece.stage:
                    self._told[root.trace, piece.span] = told

    def _late(self, piece: Slice, told: _Told, rows: dict[Subject, list[_Row]]) -> None:
        """A slice of a request that has been told: added to it, unless its attributes have said as much."""
        if not piece.stage:
            self._told[piece.trace, piece.span] = told
        elif told.by_attributes:
            self.counts["late"] += 1
        else:
            root = told.root
            rows.setdefault(root.subject, []).append(
                (root.request, STAGE[piece.stage], piece.start, piece.end, *root.tokens, 0)
            )

    def _forget(self, now: float) -> None:
        while self._told:
            key, told = next(iter(self._told.items()))
            if told.at >= now - REMEMBER_S and len(self._told) <= MOST_REMEMBERED:
                return
            del self._told[key]


_Row = tuple[int, int, float, float, float, float, float, int]


def _ancestor(span: int, parents: dict[int, int], roots: dict[int, Root]) -> int:
    """The root above a span; 0 where none is known."""
    for _ in range(_DEEPEST):
        if span in roots or not span:
            return span
        span = parents.get(span, 0)
    return 0


def _request(root: Root, slices: Sequence[Slice]) -> tuple[Subject, Sequence[tuple[str, float, float]], bool]:
    """Whose request it is, its stages, and whether they come from its attributes."""
    rank = next((s.rank for s in slices if s.rank == s.rank and 0 <= s.rank < 10_000), math.nan)
    subject = root.subject if math.isnan(rank) else msgspec.structs.replace(root.subject, rank=int(rank))
    named = sorted((s for s in slices if s.stage), key=lambda s: (s.start, s.end))
    seen: set[bytes] = set()
    pieces: list[tuple[str, float, float]] = []
    for s in named:
        first = bool(s.first_stage) and s.name not in seen
        seen.add(s.name)
        pieces.append((s.first_stage if first else s.stage, s.start, s.end))
    if not {stage for stage, _, _ in pieces} & {"queue", "prefill", "decode"}:
        return subject, root.stages, bool(root.stages)
    retracted = [at for s in slices for at in s.retracted]
    return subject, painted(pieces, retracted, root.end), False


def _rows(root: Root, stages: Iterable[tuple[str, float, float]]) -> list[_Row]:
    whole = (root.request, STAGE["request"], root.start, root.end, *root.tokens, root.outcome)
    return [whole, *((root.request, STAGE[stage], a, b, *root.tokens, 0) for stage, a, b in stages)]


def _row(request: int, stage: str, start: float, end: float) -> _Row:
    return request, STAGE[stage], start, end, math.nan, math.nan, math.nan, 0


def _spans(subject: Subject, rows: Sequence[_Row]) -> Spans:
    request, stage, start, end, prompt, output, cached, outcome = zip(*rows, strict=True)
    return Spans(
        subject, "spans", np.array(request, np.uint64), np.array(stage, np.uint8), np.array(start, np.float64),
        np.array(end, np.float64), np.array(prompt, np.float64), np.array(output, np.float64),
        np.array(cached, np.float64), np.array(outcome, np.uint8),
    )  # fmt: skip
