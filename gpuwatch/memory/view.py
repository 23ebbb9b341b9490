"""The question box of a rule: everything that may be asked of one engine at one second, and nothing else.

A window refuses: a signal that is absent, too thin or too old raises Missing, and the pipeline marks the rule blind. So
rule bodies hold no None-checks. Spans of time are seconds that end at `now`; statistics run over the one-second grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ..config import Slo
from ..model import Event, Evidence, Floats, LiveRequests, Missing, OpenStep, Subject
from ..sources.gpu import device_map
from ..stats import bucket_quantile, slope, spread
from .baseline import Baseline
from .history import HistogramSeries, History
from .tiers import GREATEST, LAST, LEAST, MEAN, Tier

T = TypeVar("T")
SLOW_S = 3.0
"""Looks further apart than this are slow: single ones are no evidence of what lasts, and counters jump between them."""
LINES_S = 10.0  # between two stats lines of vLLM and LMDeploy; other engines print more often
THIN = 0.5  # least share of a span's seconds that must be known


class Window:
    """What may be asked of one engine now. `gpus` are the devices that are known to serve it."""

    def __init__(
        self,
        now: float,
        history: History,
        gpus: tuple[History, ...],
        baseline: Baseline,
        slo: Slo,
        hosts: tuple[History, ...] = (),
    ) -> None:
        self.now = now
        self.history = history
        self.gpus = gpus
        self.hosts = hosts
        self.baseline = baseline
        self.slo = slo
        self._memo: dict[object, object] = {}
        self._held: dict[tuple[str, float, int], tuple[Floats, int]] = {}
        self._best: dict[str, tuple[str, Tier]] = {}
        self._gpu_means: dict[tuple[str, float], float] = {}

    @property
    def subject(self) -> Subject:
        """The engine that is asked about."""
        return self.history.subject

    def once(self, question: Callable[[Window], T]) -> T:
        """The answer to a question that several rules ask, computed once a tick. Missing is remembered too."""
        if question not in self._memo:
            try:
                self._memo[question] = question(self)
            except Missing as e:
                self._memo[question] = e
        answer = self._memo[question]
        if isinstance(answer, Missing):
            raise answer
        return answer  # type: ignore[return-value]

    def maybe(self, question: Callable[[Window], T]) -> T | None:
        """The same, None where the data cannot answer."""
        try:
            return self.once(question)
        except Missing:
            return None

    # --- gauges and counters -------------------------------------------------------------------------------------

    def source(self, signal: str) -> str:
        """The best fresh source of a signal."""
        return self._tier(signal)[0]

    def has(self, signal: str) -> bool:
        """Whether a fresh source has the signal."""
        try:
            self._tier(signal)
        except Missing:
            return False
        return True

    def moves(self, counter: str) -> bool:
        """Whether a fresh source has the counter and it moves with the work: some engines count when a request ends."""
        try:
            source, _ = self._tier(counter)
        except Missing:
            return False
        late = self.history.info.get("at_finish", "").split(",")
        return not (source.startswith("page") and counter in late)

    def level(self, signal: str) -> float:
        """The last value, held no longer than its source's cadence allows."""
        name, tier = self._tier(signal)
        value = float(tier.span(signal, self.now, 1)[-1])
        if math.isnan(value):
            raise Missing(signal, f"no fresh value from {name}")
        return value

    def series(self, signal: str, span_s: float, kind: int = LAST, thin: float = THIN) -> Floats:
        """One value a second, oldest first, NaN where not known; refuses when fewer than `thin` of them are known."""
        return self._known(signal, span_s, kind, thin)[0]

    def _known(self, signal: str, span_s: float, kind: int = LAST, thin: float = THIN) -> tuple[Floats, int]:
        """`series`, and how many of its values are not known."""
        key = (signal, span_s, kind)
        held = self._held.get(key)
        if held is None:
            _, tier = self._tier(signal)
            values = tier.span(signal, self.now, span_s, kind)
            values.flags.writeable = False  # several rules read the same answer
            held = self._held[key] = values, int(np.count_nonzero(np.isnan(values)))
        values, unknown = held
        if not len(values) or unknown > (1 - thin) * len(values):
            raise Missing(signal, f"fewer than {thin:.0%} of the last {span_s:.0f} s are known")
        return held

    def past(self, signal: str, span_s: float, kind: int = LAST) -> Floats:
        """The same, whatever of it is known, from the best source even if that is silent now; all NaN is refused."""
        for source in self.history.sources(signal):
            values = self.history.tiers[source].span(signal, self.now, span_s, kind)
            if not np.isnan(values).all():
                return values
        raise Missing(signal, f"nothing is known of the last {span_s:.0f} s")

    def mean(self, signal: str, span_s: float) -> float:
        """Time-weighted mean."""
        values, unknown = self._known(signal, span_s, MEAN)
        return float((values[~np.isnan(values)] if unknown else values).mean())

    def least(self, signal: str, span_s: float) -> float:
        """Smallest reading."""
        return float(np.fmin.reduce(self.series(signal, span_s, LEAST)))

    def greatest(self, signal: str, span_s: float, thin: float = THIN) -> float:
        """Greatest reading."""
        return float(np.fmax.reduce(self.series(signal, span_s, GREATEST, thin)))

    def slope(self, signal: str, span_s: float) -> float:
        """Least-squares slope per second."""
        return slope(self.series(signal, span_s, MEAN))

    def rate(self, counter: str, span_s: float) -> float:
        """Increase per second of a counter, over the known part of the span; refuses below two known seconds."""
        values, unknown = self._known(counter, span_s + 1, LAST, thin=0.3)
        if not unknown and len(values) > 1:  # the usual second
            return float((values[-1] - values[0]) / (len(values) - 1))
        known = np.flatnonzero(~np.isnan(values))
        if len(known) < 2 or known[-1] == known[0]:
            raise Missing(counter, "fewer than two readings in the span")
        return float((values[known[-1]] - values[known[0]]) / (known[-1] - known[0]))

    def increments(self, counter: str, span_s: float) -> Floats:
        """Increase in each second of the span; NaN where not known. Slow looks are spread over the time they cover."""
        count = self.series(counter, span_s + 1, LAST, thin=0.1)
        rises: Floats = count[1:] - count[:-1]
        pace_s = self.cadence_s(counter)
        return rises if pace_s <= SLOW_S else spread(rises, round(pace_s))

    def cadence_s(self, signal: str) -> float:
        """Usual time between two looks of the signal's best fresh source; 1 where that is not known yet.

        What a log says each second between two of its lines is the last line again, and no look.
        """
        source, tier = self._tier(signal)
        pace_s = 1.0 if math.isnan(tier.cadence_s) else tier.cadence_s
        return max(pace_s, LINES_S) if source == "log" else pace_s

    def span_of(self, signal: str, span_s: float, looks: int = 4) -> float:
        """The span, or as much longer as so many looks at the signal take where they are slow."""
        pace_s = self.cadence_s(signal)
        return span_s if pace_s <= SLOW_S else max(span_s, math.ceil(looks * pace_s))

    def age(self, signal: str) -> float:
        """Seconds since the signal last changed: a frozen gauge is not a steady one."""
        _, tier = self._tier(signal)
        return max(0.0, self.now - float(tier.moved_at[tier.row[signal]]))

    def coverage(self, signal: str, span_s: float) -> float:
        """Share of the span's seconds that are known, 0 where the signal is absent."""
        try:
            _, tier = self._tier(signal)
        except Missing:
            return 0.0
        return float((~np.isnan(tier.span(signal, self.now, span_s))).mean())

    def age_of_history(self) -> float:
        """For how long this engine has been watched."""
        first = self.history.first_seen_at
        return 0.0 if math.isnan(first) else self.now - first

    # --- histograms ----------------------------------------------------------------------------------------------

    def observed_mean(self, name: str, span_s: float) -> float:
        """Δsum ÷ Δcount of a histogram: the one statistic that its buckets cannot distort."""
        counts, total, _ = self._delta(name, span_s)
        n = float(counts.sum())
        if n <= 0:
            raise Missing(name, f"no observation in the last {span_s:.0f} s")
        if total < 0:
            raise Missing(name, "its sum fell: the engine observed negative durations")
        return total / n

    def observed_quantile(self, name: str, q: float, span_s: float) -> float:
        """A quantile; refused below the first bucket's bound and above the last."""
        counts, _, _ = self._delta(name, span_s)
        bounds = self._histogram(name).bounds
        value = bucket_quantile(bounds, counts, q)
        if value is None:
            raise Missing(name, f"P{q * 100:.0f} lies outside what its buckets resolve")
        return value

    def observed_share(self, name: str, limit: float, span_s: float) -> tuple[float, float]:
        """(share of observations ≤ the largest bucket bound that is ≤ limit, number of observations)."""
        counts, _, _ = self._delta(name, span_s)
        bounds = self._histogram(name).bounds
        n = float(counts.sum())
        if n <= 0:
            raise Missing(name, f"no observation in the last {span_s:.0f} s")
        k = int(np.searchsorted(bounds, limit, side="right"))
        return float(counts[:k].sum()) / n, n

    def observed_so_far(self, name: str, limit: float) -> tuple[float, float]:
        """(observations, observations ≤ the largest bucket bound that is ≤ limit) since the engine was first seen."""
        series = self._histogram(name)
        counts = series.points[-1][1]
        k = int(np.searchsorted(series.bounds, limit, side="right"))
        return float(counts.sum()), float(counts[:k].sum())

    def has_histogram(self, name: str) -> bool:
        """Whether the engine shows this histogram."""
        return any(n == name for _, n in self.history.histograms)

    # --- requests ------------------------------------------------------------------------------------------------

    def finished(self, span_s: float) -> dict[str, Floats]:
        """Columns of the requests that ended in the span (request_log.COLUMNS); refuses where no spans come in."""
        if not self.history.finished.rows:
            raise Missing("spans", "no request spans")
        key = ("finished", span_s)
        if key not in self._memo:
            self._memo[key] = self.history.finished.window(self.now - span_s, self.now)
        return self._memo[key]  # type: ignore[return-value]

    @property
    def live(self) -> LiveRequests:
        """The live request table; refuses where there is none from the last five seconds."""
        live = self.history.live
        if live is None or self.now - live.at > 5:
            raise Missing("live_requests", "no live request table")
        return live

    @property
    def open_step(self) -> OpenStep | None:
        """The step in progress, None when there is none or no ring."""
        return self.history.open_step

    def events(self, what: str, span_s: float) -> list[Event]:
        """Events of a kind in the span, oldest first."""
        return [e for e in self.history.events if e.what == what and self.now - span_s <= e.at <= self.now]

    def limit(self, name: str) -> float:
        """A configured limit: from a signal, or from what the engine says of itself."""
        if self.has(name):
            return self.level(name)
        try:
            return float(self.history.info[name])
        except (KeyError, ValueError):
            raise Missing(name, "the engine does not say") from None

    # --- devices -------------------------------------------------------------------------------------------------

    def gpu_series(self, signal: str, span_s: float, kind: int = MEAN) -> Floats:
        """Mean over the engine's devices, one value a second."""
        rows = []
        mixed = [gpu for gpu in self.gpus if signal in device_map.MIXED and device_map.is_shared(gpu.info)]
        for gpu in self.gpus:
            for source in gpu.sources(signal) if gpu not in mixed else ():
                values = gpu.tiers[source].span(signal, self.now, span_s, kind)
                if not np.isnan(values).all():
                    rows.append(values)
                    break
        if not rows and mixed:
            raise Missing(signal, "its device is shared: what it shows is of all who use it")
        if not rows:
            raise Missing(signal, "no fresh reading of a device that is known to serve this engine")
        if len(rows) == 1:
            return rows[0]
        stack = np.array(rows)
        known = ~np.isnan(stack)
        total = np.where(known, stack, 0.0).sum(axis=0)
        out: Floats = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), math.nan)
        return out

    def gpu_mean(self, signal: str, span_s: float) -> float:
        """Mean over devices and time."""
        key = (signal, span_s)
        found = self._gpu_means.get(key)
        if found is None:
            values = self.gpu_series(signal, span_s)
            found = self._gpu_means[key] = float(values[~np.isnan(values)].mean())
        return found

    # --- evidence ------------------------------------------------------------------------------------------------

    def evidence(
        self,
        signal: str,
        observed: float | str | None,
        limit: float | str | None = None,
        op: str = "",
        window_s: float = 0.0,
    ) -> Evidence:
        """A number with its limit, its span and the source that told it."""
        return Evidence(signal, observed, limit, op, window_s, self._source_name(signal))

    def _source_name(self, signal: str) -> str:
        for history in (self.history, *self.gpus, *self.hosts):
            for source in history.sources(signal):
                return source
        if any(n == signal for _, n in self.history.histograms):
            return next(s for s, n in self.history.histograms if n == signal)
        return "derived"

    def _tier(self, signal: str) -> tuple[str, Tier]:
        """The best fresh source of a signal; found once a tick."""
        found = self._best.get(signal)
        if found is None:
            found = self._best[signal] = self._best_tier(signal)
        return found

    def _best_tier(self, signal: str) -> tuple[str, Tier]:
        candidates = self.history.sources(signal)
        for source in candidates:
            tier = self.history.tiers[source]
            if self.now - float(tier.held_at[tier.row[signal]]) <= tier.hold_s + 1:
                return source, tier
        if candidates:
            raise Missing(signal, f"stale: nothing fresh from {', '.join(candidates)}")
        raise Missing(signal, "no source has it")

    def _histogram(self, name: str) -> HistogramSeries:
        for (_, n), series in self.history.histograms.items():
            if n == name:
                return series
        raise Missing(name, "no source has this histogram")

    def _delta(self, name: str, span_s: float) -> tuple[Floats, float, float]:
        delta = self._histogram(name).delta(self.now - span_s, self.now)
        if delta is None:
            raise Missing(name, f"fewer than two snapshots in the last {span_s:.0f} s")
        return delta
