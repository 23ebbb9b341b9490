"""Stage spans of a record: the slowest requests as bars, and the first tokens over time.

Spans are kept as the columns that they came in, at most `MOST_SPANS` of them: beyond that the oldest go and are
counted. The time to first token of a request is the end of its first prefill minus its first start (queue or earlier).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..model import LIVE_STAGES, OUTCOMES, STAGES, Floats, LiveRequests, Spans
from .data import RequestBar, Segment

MOST_SPANS = 400_000
_WHOLE = STAGES.index("request")
_CLIENT = STAGES.index("client")
_PREFILL = STAGES.index("prefill")
_COVERED = 0.95
"""Share of a request's time that its stages must explain, or the whole is drawn behind them."""


class SpanLog:
    """The spans of one engine, in the order of arrival."""

    def __init__(self) -> None:
        self._blocks: list[Spans] = []
        self._rows = 0
        self.cut = 0

    def add(self, spans: Spans) -> None:
        """Keep one block; the oldest blocks go when there are too many."""
        self._blocks.append(spans)
        self._rows += len(spans.request)
        while self._rows > MOST_SPANS and len(self._blocks) > 1:
            gone = self._blocks.pop(0)
            self._rows -= len(gone.request)
            self.cut += len(gone.request)

    def __len__(self) -> int:
        return self._rows

    @property
    def sources(self) -> tuple[str, ...]:
        """Who told the spans."""
        return tuple(sorted({b.source for b in self._blocks}))

    def column(self, name: str) -> Floats:
        """One column of all blocks together."""
        parts = [getattr(b, name) for b in self._blocks]
        return np.concatenate(parts) if parts else np.zeros(0)

    def first_tokens(self) -> tuple[Floats, Floats]:
        """(time of the first token, seconds that it took) of each request that got one, by time."""
        if not self._rows:
            return np.zeros(0), np.zeros(0)
        request, stage = self.column("request"), self.column("stage")
        start, end = self.column("start"), self.column("end")
        ids, inverse = np.unique(request, return_inverse=True)
        began = np.full(len(ids), math.inf)
        inside = stage != _CLIENT
        np.minimum.at(began, inverse[inside], start[inside])
        first = np.full(len(ids), math.inf)
        prefill = stage == _PREFILL
        np.minimum.at(first, inverse[prefill], end[prefill])
        known = np.isfinite(began) & np.isfinite(first)
        order = np.argsort(first[known], kind="stable")
        return first[known][order], (first - began)[known][order]

    def slowest(self, from_at: float, until_at: float, count: int) -> list[RequestBar]:
        """The `count` requests with the longest time to first token among those alive in [from_at, until_at]."""
        if not self._rows:
            return []
        start, end, stage = self.column("start"), self.column("end"), self.column("stage")
        ids, inverse = np.unique(self.column("request"), return_inverse=True)
        began, ended, first = (np.full(len(ids), sign * math.inf) for sign in (1, -1, 1))
        inside, prefill = stage != _CLIENT, stage == _PREFILL
        np.minimum.at(began, inverse[inside], start[inside])
        np.maximum.at(ended, inverse[inside], end[inside])
        np.minimum.at(first, inverse[prefill], end[prefill])
        wait = np.where(np.isfinite(first), first, ended) - began
        wait[(ended < from_at) | (began > until_at)] = -math.inf
        chosen = [int(i) for i in np.argsort(-wait, kind="stable")[:count] if wait[i] > 0]
        return [self._bar(np.flatnonzero(inverse == i)) for i in chosen]

    def _bar(self, rows: NDArray[np.intp]) -> RequestBar:
        rows = rows[self.column("stage")[rows] != _CLIENT]
        stage, start, end = self.column("stage")[rows], self.column("start")[rows], self.column("end")[rows]
        segments = [
            Segment(STAGES[int(stage[i])], float(start[i]), float(end[i]))
            for i in np.argsort(start, kind="stable")
            if stage[i] != _WHOLE
        ]
        whole = Segment("request", float(start.min()), float(end.max()))
        if sum(s.end - s.start for s in segments) < (whole.end - whole.start) * _COVERED:
            segments.insert(0, whole)  # below the others: what no stage explains shows through
        first = end[stage == _PREFILL]
        outcome = int(self.column("outcome")[rows].max())
        return RequestBar(
            f"{int(self.column('request')[rows][0]):016x}",
            float(start.min()),
            float(end.max()),
            float(first.min() - start.min()) if len(first) else None,
            _most(self.column("prompt_tokens")[rows]),
            _most(self.column("output_tokens")[rows]),
            OUTCOMES[outcome] if outcome < len(OUTCOMES) else "",
            tuple(segments),
        )


def in_flight(live: LiveRequests) -> list[RequestBar]:
    """The requests that were still without a first token: one open segment each.

    One that is queued has been so all the time; of a later stage nothing says when the earlier ones ended.
    """
    out = []
    for i in np.argsort(live.arrived_at, kind="stable"):
        generated, stage = float(live.generated_tokens[i]), float(live.stage[i])
        if generated > 0 or math.isnan(stage):
            continue
        queued = LIVE_STAGES.get(int(stage)) == "queue"
        arrived = float(live.arrived_at[i])
        out.append(
            RequestBar(
                f"{int(live.request[i]):016x}",
                arrived,
                live.at,
                None,
                _or_none(float(live.prompt_tokens[i])),
                None,
                "in flight",
                (Segment("queue" if queued else "in flight", arrived, live.at, open=True),),
            )
        )
    return out


def trailing_p95(at: Floats, values: Floats, grid: Floats, span_s: float = 30.0, least: int = 3) -> Floats:
    """P95 of the values whose time lies in the last `span_s` before each grid time; NaN below `least` values."""
    out = np.full(len(grid), math.nan)
    low = np.searchsorted(at, grid - span_s, side="right")
    high = np.searchsorted(at, grid, side="right")
    for i, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if b - a >= least:
            out[i] = np.quantile(values[a:b], 0.95)
    return out


def _most(column: Floats) -> float | None:
    known = column[~np.isnan(column)]
    return float(known.max()) if len(known) else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
