"""All that is remembered of one subject: readings per source, histograms, requests, events, what it says of itself.

Series of different sources never interleave. `Tier`s hold gauges and counters on the one-second grid; histograms are
kept as snapshots with the resets taken out, so that any window is a difference of two.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..catalog import CATALOG
from ..model import STAGES, Batch, Event, Floats, Frame, Histogram, Info, LiveRequests, OpenStep, Spans, Subject
from . import believable
from .requests import Arrivals, FinishedRequests
from .tiers import Tier

SOURCE_ORDER = (
    "steps", "readings", "gpm", "nvml", "nvml-slow", "amd", "amd-slow", "intel", "intel-slow",
    "page-fast", "page", "node", "dcgm", "host",
)  # fmt: skip
"""Which source answers first when several are fresh: the one that looks most often and lies least."""
KEEP_S = 900.0
TRACED_S = 60.0
"""For so long after spans of a traced engine, what its ring says of finished requests is the same ones told twice."""
SLOW_WORDS = ("time", "slow")
"""A page that fails like this may belong to an engine that hangs; any other failure is not one of its steps."""
_WHOLE = STAGES.index("request")


class HistogramSeries:
    """Snapshots of one histogram: (at, counts per bucket, sum), cumulative with the resets taken out."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.points: deque[tuple[float, Floats, float]] = deque(maxlen=1200)
        self.raw_count = 0.0
        self.base = np.zeros(len(bounds) + 1)
        self.base_sum = 0.0

    def add(self, h: Histogram) -> None:
        """Take a snapshot; a smaller count is a restart."""
        cumulative = np.array([*h.cumulative, h.count])
        buckets = np.diff(cumulative, prepend=0.0)
        if h.count < self.raw_count and self.points:
            self.base, self.base_sum = self.points[-1][1], self.points[-1][2]
        self.raw_count = h.count
        self.points.append((h.at, self.base + buckets, self.base_sum + h.sum))
        while self.points and self.points[0][0] < h.at - KEEP_S:
            self.points.popleft()

    def delta(self, since: float, until: float) -> tuple[Floats, float, float] | None:
        """Counts per bucket, sum of values and true span between the outermost snapshots inside; None below two."""
        inside = [p for p in self.points if since <= p[0] <= until]
        if len(inside) < 2:
            return None
        (at0, c0, s0), (at1, c1, s1) = inside[0], inside[-1]
        return c1 - c0, s1 - s0, at1 - at0


class History:
    """The memory of one subject. `ingest` takes its share of a batch; everything is bounded."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.tiers: dict[str, Tier] = {}
        self.histograms: dict[tuple[str, str], HistogramSeries] = {}
        self.finished = FinishedRequests()
        self.arrivals = Arrivals()
        self.live: LiveRequests | None = None
        self.open_step: OpenStep | None = None
        self.events: deque[Event] = deque(maxlen=500)
        self.info: dict[str, str] = {}
        self.first_seen_at = math.nan
        self.seen_at = math.nan  # last answer of any source
        self.asked: dict[str, float] = {}  # role -> last look at it, answered or not
        self.refused = False  # the page refuses, which is more than being slow
        self.error_since: dict[str, float] = {}  # role -> since when its polls fail
        self.order: dict[str, tuple[str, ...]] = {}
        self.traced_at = -math.inf  # last spans from the engine's tracing
        self.impossible = 0  # values, rows and spans that were not to be believed

    def ingest(self, batch: Batch) -> None:
        """Take what the batch says of this subject."""
        self.asked[batch.role] = batch.received_at
        if batch.error is not None and batch.subject == self.subject:
            self.error_since.setdefault(batch.role, batch.received_at)
            self.refused = batch.role == "engine" and not any(w in batch.error.lower() for w in SLOW_WORDS)
            return
        self.error_since.pop(batch.role, None)
        if batch.role == "engine":
            self.refused = False
        self.seen_at = batch.received_at
        if math.isnan(self.first_seen_at):
            self.first_seen_at = batch.received_at
        for frame in batch.frames:
            if frame.subject == self.subject:
                self._frame(frame, batch.received_at)
        for h in batch.histograms:
            if h.subject == self.subject:
                self._histogram(h)
        for told in batch.spans:
            if told.subject == self.subject:
                self._spans(told, batch)
        for table in batch.requests:
            if table.subject == self.subject:
                self.live = believable.live(table)
                self.arrivals.add_live(self.live)
        self._open_steps(batch)
        self.events.extend(e for e in batch.events if e.subject == self.subject)
        for info in batch.info:
            if info.subject == self.subject:
                self._info(info)

    def advance(self, now: float) -> None:
        """Close the second before `now`."""
        for tier in self.tiers.values():
            tier.advance(now)
        self.finished.forget(now)

    def is_gone(self) -> bool:
        """Whether the engine's page refuses: an engine that is down is no engine that hangs, whatever its ring last said."""
        return self.refused

    def asked_at(self, source: str) -> float:
        """When the last look was that a source of frames comes from: a log that goes on is no look at the page."""
        role = source if source in ("log", "steps") else "engine"
        return self.asked.get(role, max(self.asked.values(), default=math.nan))

    def sources(self, signal: str) -> tuple[str, ...]:
        """The sources that have this signal, best first."""
        known = self.order.get(signal)
        if known is None:
            have = [s for s, t in self.tiers.items() if signal in t.row]
            known = tuple(sorted(have, key=lambda s: (SOURCE_ORDER.index(s) if s in SOURCE_ORDER else 99, s)))
            self.order[signal] = known
        return known

    def _frame(self, frame: Frame, received_at: float) -> None:
        tier = self.tiers.get(frame.source)
        if tier is None:
            tier = self.tiers[frame.source] = Tier()
            self.order.clear()
        if any(n not in tier.row for n in frame.names):
            self.order.clear()
        values, cut = believable.readings(frame.names, frame.values)
        at, known = frame.at, believable.times(frame.at, received_at)
        if not known.all():
            at, values = at[known], values[known]
        self.impossible += cut + len(known) - len(at)
        tier.write(frame.names, at, values, _counters(frame.names))

    def _histogram(self, h: Histogram) -> None:
        key = (h.source, h.name)
        series = self.histograms.get(key)
        if series is None or series.bounds != h.bounds:  # an upgrade may change the buckets: begin anew
            series = self.histograms[key] = HistogramSeries(h.bounds)
        series.add(h)

    def _spans(self, told: Spans, batch: Batch) -> None:
        if batch.role != "steps":
            self.traced_at = batch.received_at
        elif batch.received_at - self.traced_at < TRACED_S:
            return
        spans, cut = believable.spans(told, batch.received_at)
        self.impossible += cut
        self.finished.add(spans, batch.received_at)
        whole = spans.stage == _WHOLE
        self.arrivals.add(spans.start[whole], spans.prompt_tokens[whole])

    def _open_steps(self, batch: Batch) -> None:
        mine = [s for s in batch.open_steps if s.subject == self.subject]
        step = believable.step(mine[-1], batch.received_at) if mine else None
        if step is not None:
            self.open_step = step
            tier = self.tiers.setdefault("steps", Tier())
            names = ("req_running", "req_waiting")
            values = np.array([[step.running, step.waiting]])
            tier.write(names, np.array([step.at]), values, np.zeros(2, bool))
            if any(n not in self.order for n in names):
                self.order.clear()
        elif batch.role == "steps":
            self.open_step = None

    def _info(self, info: Info) -> None:
        for key, value in list(info.labels.items())[:64]:
            self.info[key[:64]] = value[:256]


_COUNTER_MASKS: dict[tuple[str, ...], NDArray[np.bool_]] = {}


def _counters(names: tuple[str, ...]) -> NDArray[np.bool_]:
    mask = _COUNTER_MASKS.get(names)
    if mask is None:
        if len(_COUNTER_MASKS) > 1000:
            _COUNTER_MASKS.clear()
        mask = np.array([CATALOG[n].kind == "counter" if n in CATALOG else False for n in names])
        _COUNTER_MASKS[names] = mask
    return mask
