"""What is known of single requests: the finished ones from spans, and the arrivals seen in flight or in spans.

Finished requests are columns over the last fifteen minutes, one row a request, however its spans were split over
batches. Arrivals are (time, prompt length) pairs: a long request is known while it waits, not when it is over.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..model import STAGES, Floats, LiveRequests, Spans

KEEP_S = 900.0
MAX_ROWS = 60_000
MAX_ARRIVALS = 20_000
UNFINISHED_S = 10.0
ROUNDING_S = 2e-3
"""A stage may reach so much over its request: their times come from two clocks."""
LATE_S = 30.0
"""Spans may come so much out of order: a block is looked at until its newest end is this much too old."""

COLUMNS = (
    "start", "end", "ttft_s", "e2e_s", "queue_s", "prefill_s", "requeue_s", "decode_s", "front_s",
    "prompt_tokens", "output_tokens", "outcome",
)  # fmt: skip
_PREFILL, _DECODE = STAGES.index("prefill"), STAGES.index("decode")
_STAGES = (("queue",), ("prefill",), ("requeue",), ("decode",), ("gateway", "receive", "preprocess"))
_STAGE_COLUMN = np.array([next((i for i, names in enumerate(_STAGES) if s in names), -1) for s in STAGES])
"""Of each stage, which of the columns queue_s, prefill_s, requeue_s, decode_s, front_s it adds to; −1: none."""
_WHOLE = STAGES.index("request")


class FinishedRequests:
    """One row a finished request: times in seconds, tokens, outcome code. NaN where spans did not say."""

    def __init__(self) -> None:
        self.blocks: deque[Floats] = deque()
        self.rows = 0
        self.cut = 0
        self.fresh: list[tuple[float, float]] = []  # for the SLO counters
        self.fresh_of: dict[int, int] = {}  # request -> its place in `fresh`
        self.ids: deque[NDArray[np.uint64]] = deque()
        self.pending: dict[int, list[tuple[float, Floats]]] = {}  # request without its whole: (received, span rows)
        self.counted: dict[int, float] = {}  # request -> when it became a row: spans that come later are no second one
        self.late = 0

    def add(self, spans: Spans, received_at: float) -> None:
        """Take finished stage spans. A request counts once its `request` span is there, or after ten seconds."""
        columns = np.column_stack(
            [spans.stage, spans.start, spans.end, spans.prompt_tokens, spans.output_tokens, spans.outcome]
        ).astype(np.float64)
        request = spans.request
        if self.counted:
            fresh = np.array([r not in self.counted for r in request.tolist()], bool)
            if not fresh.all():
                self._amend(request[~fresh], columns[~fresh])
                request, columns = request[fresh], columns[fresh]
        whole = request[columns[:, 0] == _WHOLE]
        split = ~np.isin(request, whole)
        for i in np.flatnonzero(split):
            if len(self.pending) < 4096:
                self.pending.setdefault(int(request[i]), []).append((received_at, columns[i]))
            else:
                self.cut += 1
        if self.pending and len(whole):
            early = [(r, row) for r in whole.tolist() for _, row in self.pending.pop(int(r), ())]
            if early:
                request = np.concatenate([request[~split], np.array([r for r, _ in early], np.uint64)])
                columns = np.concatenate([columns[~split], np.array([row for _, row in early])])
                split = np.zeros(len(request), bool)
        self._group(request[~split], columns[~split], received_at)

    def window(self, since: float, until: float) -> dict[str, Floats]:
        """The columns of the requests that ended in [since, until)."""
        parts = []
        for block in reversed(self.blocks):
            if block[-1, 1] < since - LATE_S:
                break
            parts.append(block)
        table = np.concatenate(parts[::-1]) if parts else np.zeros((0, len(COLUMNS)))
        table = table[(table[:, 1] >= since) & (table[:, 1] < until)]
        return {name: table[:, i] for i, name in enumerate(COLUMNS)}

    def slowest(self, since: float, until: float, n: int) -> tuple[NDArray[np.uint64], dict[str, Floats]]:
        """Ids and columns of the n requests with the greatest end-to-end time that ended in the interval."""
        if not self.blocks:
            return np.zeros(0, np.uint64), {name: np.zeros(0) for name in COLUMNS}
        table, ids = np.concatenate(list(self.blocks)), np.concatenate(list(self.ids))
        inside = np.flatnonzero((table[:, 1] >= since) & (table[:, 1] < until))
        order = inside[np.argsort(-table[inside, 3], kind="stable")][:n]
        return ids[order], {name: table[order, i] for i, name in enumerate(COLUMNS)}

    def forget(self, now: float) -> None:
        """Count what waits in vain for its whole; drop what is too old, and the oldest rows beyond the bound (counted)."""
        self.settle(now)
        if self.counted and next(iter(self.counted.values())) < now - 2 * LATE_S:
            self.counted = {r: at for r, at in self.counted.items() if at >= now - LATE_S}
        while self.blocks and (self.blocks[0][:, 1].max() < now - KEEP_S or self.rows > MAX_ROWS):
            if self.blocks[0][:, 1].max() >= now - KEEP_S:
                self.cut += len(self.blocks[0])
            self.rows -= len(self.blocks.popleft())
            self.ids.popleft()

    def settle(self, now: float) -> None:
        """Count requests whose whole has not come ten seconds after their first span."""
        old = [r for r, rows in self.pending.items() if rows[0][0] < now - UNFINISHED_S]
        if old:
            request = np.array([r for r in old for _ in self.pending[r]], np.uint64)
            columns = np.array([row for r in old for _, row in self.pending.pop(r)])
            self._group(request, columns, now)

    def _amend(self, request: NDArray[np.uint64], c: Floats) -> None:
        """Stages that came after their request was counted, added to its row. A request that comes whole again is a
        repeat (an exporter that tried twice): it is dropped and counted in `late`, as is a stage that does not fit."""
        repeated = np.isin(request, request[c[:, 0] == _WHOLE])
        self.late += int(repeated.sum())
        request, c = request[~repeated], c[~repeated]
        for block, ids in zip(reversed(self.blocks), reversed(self.ids), strict=True):
            if not len(request):
                return
            here = np.isin(request, ids)
            for one, stage, start, end in zip(request[here], *c[here, :3].T, strict=True):
                row = block[int(np.flatnonzero(ids == one)[-1])]
                if not self._add_stage(int(one), row, int(stage), float(start), float(end)):
                    self.late += 1
            request, c = request[~here], c[~here]
        self.late += len(request)

    def _add_stage(self, request: int, row: Floats, stage: int, start: float, end: float) -> bool:
        """Add one stage to a row in place; False where the request has no room for it."""
        column, length = int(_STAGE_COLUMN[stage]), end - start
        if column < 0:
            return True
        so_far = row[4 + column]
        total = length if math.isnan(so_far) else so_far + length
        if (
            float(np.nansum(row[4:9])) + length > row[3] + ROUNDING_S
            or start < row[0] - ROUNDING_S
            or end > row[1] + ROUNDING_S
        ):
            return False
        ttft, tpot_known = row[2], not math.isnan(row[7])
        row[4 + column] = total
        if stage == _DECODE:
            first = start - row[0]
            row[2] = min(ttft, first) if tpot_known and not math.isnan(ttft) else first
        elif stage == _PREFILL and not tpot_known:
            row[2] = end - row[0] if math.isnan(ttft) else max(ttft, end - row[0])
        late_ttft = float(row[2]) if math.isnan(ttft) else math.nan
        late_tpot = float(total / (row[10] - 1)) if stage == _DECODE and not tpot_known and row[10] > 1 else math.nan
        self._tell(request, late_ttft, late_tpot)
        return True

    def _tell(self, request: int, ttft: float, tpot: float) -> None:
        """A TTFT or TPOT that became known late, each once: beside what was told of the request, if that still waits."""
        if math.isnan(ttft) and math.isnan(tpot):
            return
        place = self.fresh_of.get(request)
        if place is None:
            self.fresh_of[request] = len(self.fresh)
            self.fresh.append((ttft, tpot))
        else:
            before = self.fresh[place]
            self.fresh[place] = (before[0] if math.isnan(ttft) else ttft, before[1] if math.isnan(tpot) else tpot)

    def _group(self, request: NDArray[np.uint64], c: Floats, now: float) -> None:
        if not len(request):
            return
        ids, inverse = np.unique(request, return_inverse=True)
        self.counted.update(dict.fromkeys(ids.tolist(), now))
        n = len(ids)
        stage, start, end = c[:, 0].astype(int), c[:, 1], c[:, 2]
        out = np.full((n, len(COLUMNS)), math.nan)
        first, last = np.full(n, math.inf), np.full(n, -math.inf)
        np.minimum.at(first, inverse, start)
        np.maximum.at(last, inverse, end)
        out[:, 0], out[:, 1], out[:, 3] = first, last, last - first
        column = _STAGE_COLUMN[stage]
        timed = column >= 0
        place = inverse[timed] * len(_STAGES) + column[timed]
        summed = np.bincount(place, (end - start)[timed], n * len(_STAGES)).reshape(n, -1)
        seen = np.bincount(place, minlength=n * len(_STAGES)).reshape(n, -1) > 0
        out[:, 4:9] = np.where(seen, summed, math.nan)
        first_token = np.full(n, math.inf)
        decode = stage == _DECODE
        np.minimum.at(first_token, inverse[decode], start[decode])
        prefill_end = np.full(n, -math.inf)
        mask = stage == _PREFILL
        np.maximum.at(prefill_end, inverse[mask], end[mask])
        first_token = np.where(np.isfinite(first_token), first_token, prefill_end)
        out[:, 2] = np.where(np.isfinite(first_token), first_token - first, math.nan)
        for column, source in ((9, 3), (10, 4), (11, 5)):
            best = np.full(n, -1.0)
            np.maximum.at(best, inverse, np.fmax(c[:, source], -1.0))  # NaN: not known
            out[:, column] = np.where(best >= 0, best, math.nan)
        order = np.argsort(out[:, 1], kind="stable")
        self.rows += n
        if self.blocks and len(self.blocks[-1]) < 64 and out[order[0], 1] >= self.blocks[-1][-1, 1]:
            self.blocks[-1] = np.concatenate([self.blocks[-1], out[order]])
            self.ids[-1] = np.concatenate([self.ids[-1], ids[order]])
        else:
            self.blocks.append(out[order])
            self.ids.append(ids[order])
        tpot = out[order, 7] / np.where(out[order, 10] > 1, out[order, 10] - 1, math.nan)
        self.fresh_of.update(zip(ids[order].tolist(), range(len(self.fresh), len(self.fresh) + n), strict=True))
        self.fresh.extend(zip(out[order, 2].tolist(), tpot.tolist(), strict=True))

    def take_fresh(self) -> list[tuple[float, float]]:
        """(TTFT, TPOT) in seconds of the requests that were added since the last call; NaN where not known."""
        fresh, self.fresh = self.fresh, []
        self.fresh_of = {}
        return fresh


class Arrivals:
    """Arrivals whose prompt length is known, each once: columns of time and prompt tokens, in the order of learning."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], None] = {}
        self.at: Floats = np.zeros(256)
        self.tokens: Floats = np.zeros(256)
        self.n = 0

    def add(self, arrived_at: Floats, prompt_tokens: Floats) -> None:
        """Take arrivals, from a live table or from spans. One (0.1 s, length) pair is one request."""
        tenths = np.round(arrived_at * 10)
        for tenth, tokens in zip(tenths.tolist(), prompt_tokens.tolist(), strict=True):
            if tokens != tokens or tenth != tenth or (key := (int(tenth), int(tokens))) in self.seen:
                continue
            self.seen[key] = None
            if self.n == len(self.at):
                self._make_room()
            self.at[self.n], self.tokens[self.n] = tenth / 10, tokens
            self.n += 1

    def add_live(self, live: LiveRequests) -> None:
        """Take the requests in flight."""
        self.add(live.arrived_at, live.prompt_tokens)

    def window(self, since: float, until: float) -> tuple[Floats, Floats]:
        """Times and prompt lengths of the arrivals in [since, until)."""
        inside = (self.at[: self.n] >= since) & (self.at[: self.n] < until)
        return self.at[: self.n][inside], self.tokens[: self.n][inside]

    def _make_room(self) -> None:
        """Forget what is older than 15 minutes; grow up to the bound; then forget the older half."""
        at, tokens = self.at[: self.n], self.tokens[: self.n]
        keep = at >= at.max() - KEEP_S
        if int(keep.sum()) > MAX_ARRIVALS // 2:
            keep &= at >= float(np.median(at[keep]))
        at, tokens = at[keep], tokens[keep]
        self.n = len(at)
        size = max(256, 2 * self.n)
        self.at, self.tokens = np.zeros(size), np.zeros(size)
        self.at[: self.n], self.tokens[: self.n] = at, tokens
        self.seen = dict.fromkeys((round(a * 10), int(t)) for a, t in zip(at.tolist(), tokens.tolist(), strict=True))
