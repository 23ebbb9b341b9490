"""What a report takes from a replay, second by second: levels of the engine and its devices, states, transitions.

Signals are read from the pipeline's own grid, so a plot shows what the rules saw. Bounded: at most `MOST_TICKS` seconds
and `MOST_ENGINES` engines; what is beyond is counted in `cut`.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..model import Batch, EngineState, Histogram, LiveRequests, Subject, Tick, Transition
from ..stats import bucket_quantile
from .request_spans import SpanLog

if TYPE_CHECKING:
    from ..pipeline import Pipeline

MOST_TICKS = 6 * 3600
MOST_ENGINES = 16
MOST_TRANSITIONS = 1000

ENGINE_SIGNALS = ("req_running", "req_waiting", "kv_usage_ratio", "head_wait_seconds", "req_arrived_total")
GPU_SIGNALS = ("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio")


class EngineLog:
    """What was sampled of one engine."""

    def __init__(self, began: int) -> None:
        self.began = began  # index of the first tick that knew this engine
        self.levels: dict[str, array[float]] = {s: array("d") for s in ENGINE_SIGNALS}
        self.states: list[EngineState] = []
        self.spans = SpanLog()
        self.ttft = TtftHistogram()
        self.live: LiveRequests | None = None
        self.model = ""

    def sample(self, now: float, pipeline: Pipeline | None, subject: Subject) -> None:
        """Take the levels of one tick; NaN while the pipeline does not know the engine."""
        for signal, values in self.levels.items():
            values.append(pipeline.level(subject, signal) if pipeline is not None else math.nan)
        self.ttft.tick(now)


class TtftHistogram:
    """TTFT P95 of the last 30 s from an engine's own cumulative histogram, one value a tick."""

    def __init__(self) -> None:
        self._seen: list[Histogram] = []
        self.values = array("d")
        self.source = ""

    def add(self, histogram: Histogram) -> None:
        """One reading; a fall of the count is a restart and starts anew."""
        if self._seen and histogram.count < self._seen[-1].count:
            self._seen.clear()
        if not self._seen or histogram.source == self._seen[-1].source:
            self._seen.append(histogram)
            self.source = histogram.source

    def tick(self, now: float) -> None:
        """Take the P95 over the last 30 s; NaN where fewer than three requests began to answer in it."""
        while len(self._seen) > 1 and self._seen[1].at <= now - 30.0:
            self._seen.pop(0)
        self.values.append(self._p95())

    def _p95(self) -> float:
        if len(self._seen) < 2 or self._seen[-1].count - self._seen[0].count < 3:
            return math.nan
        first, last = self._seen[0], self._seen[-1]
        cumulative = np.array([*last.cumulative, last.count]) - np.array([*first.cumulative, first.count])
        p95 = bucket_quantile(last.bounds, np.diff(cumulative, prepend=0.0), 0.95)
        return math.nan if p95 is None else p95


class Sampler:
    """Collects while a record is replayed; `see` is called once after each pipeline step."""

    def __init__(self) -> None:
        self.at = array("d")
        self.engines: dict[Subject, EngineLog] = {}
        self.gpu_levels: dict[str, array[float]] = {s: array("d") for s in GPU_SIGNALS}
        self.gpus = 0
        self.transitions: list[Transition] = []
        self.sources: dict[str, set[str]] = {}  # signal → who told it
        self.cut: Counter[str] = Counter()

    def see(self, now: float, batches: Sequence[Batch], tick: Tick, pipeline: Pipeline) -> None:
        """Take one second."""
        if len(self.at) >= MOST_TICKS:
            self.cut["seconds"] += 1
            return
        for batch in batches:
            self._take(batch)
        subjects = pipeline.subjects()
        for subject in subjects:  # before the tick counts: a log begins at the tick that first samples it
            self._engine(subject)
        self.at.append(now)
        for subject, log in self.engines.items():
            log.sample(now, pipeline if subject in subjects else None, subject)
        self._sample_gpus([s for s in subjects if s.gpu], pipeline)
        for state in tick.states:
            if state.subject in self.engines:
                self.engines[state.subject].states.append(state)
        room = MOST_TRANSITIONS - len(self.transitions)
        self.transitions += tick.transitions[:room]
        self.cut["transitions"] += max(len(tick.transitions) - room, 0)

    def _take(self, batch: Batch) -> None:
        for frame in batch.frames:
            for name in frame.names:
                if name in ENGINE_SIGNALS or name in GPU_SIGNALS:
                    self.sources.setdefault(name, set()).add(frame.source)
        for spans in batch.spans:
            if (log := self._engine(spans.subject)) is not None:
                log.spans.add(spans)
        for histogram in batch.histograms:
            if histogram.name == "ttft_seconds" and (log := self._engine(histogram.subject)) is not None:
                log.ttft.add(histogram)
        for live in batch.requests:
            if (log := self._engine(live.subject)) is not None:
                log.live = live
        for info in batch.info:
            if (log := self._engine(info.subject)) is not None:
                log.model = info.labels.get("model") or info.labels.get("model_name") or log.model

    def _engine(self, subject: Subject) -> EngineLog | None:
        """The log of an engine; None (and counted) beyond the bound."""
        if not subject.engine:
            return None
        log = self.engines.get(subject)
        if log is None:
            if len(self.engines) >= MOST_ENGINES:
                self.cut["items of further engines"] += 1
                return None
            log = self.engines[subject] = EngineLog(len(self.at))
        return log

    def _sample_gpus(self, gpus: list[Subject], pipeline: Pipeline) -> None:
        """The mean over the devices that are known: what matters is whether work flows, not which card is first."""
        self.gpus = max(self.gpus, len(gpus))
        for signal, values in self.gpu_levels.items():
            known = [v for g in gpus if not math.isnan(v := pipeline.level(g, signal))]
            values.append(sum(known) / len(known) if known else math.nan)
