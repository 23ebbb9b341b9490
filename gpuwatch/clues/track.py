"""What is kept of one signal, of one kind of notice and of one subject: a few numbers each, however long the recording.

`Track` sums up a signal, `Notice` the messages of one kind, `Sight` all that was seen of one subject. The looks of a
subject are kept jointly (what was seen together), at most `LOOKS`: when they are full, every second one goes.
Times are unix seconds; a counter's growth leaves its falls out, because a fall is a restart or another process.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ..catalog import CATALOG
from ..memory.requests import FinishedRequests
from ..model import Event, Floats, Frame, Histogram, Info, Spans, Subject

LOOKS = 512
KINDS = 64
NUMBERS = 16
TEXTS = 32
TIMES = 128
FACTS = 64
REQUESTS = 60_000
BESIDE_S = 120.0
"""For so long after another source told a level, a log's line, which speaks for the past interval, is no look at it."""


class Track:
    """A signal as one source told it: first, last, extremes, mean, and for counters the growth and the falls."""

    __slots__ = (
        "count",
        "falls",
        "first",
        "first_at",
        "greatest",
        "growth",
        "last",
        "last_at",
        "least",
        "moves",
        "sum",
    )

    def __init__(self) -> None:
        self.first = self.last = self.least = self.greatest = math.nan
        self.first_at = self.last_at = math.nan
        self.sum = self.growth = 0.0
        self.count = self.falls = self.moves = 0

    def add(self, at: Floats, values: Floats) -> None:
        """Take readings in the order of time; NaN is skipped."""
        known = ~np.isnan(values)
        if not known.any():
            return
        values, at = values[known], at[known]
        steps = np.diff(values) if math.isnan(self.last) else np.diff(values, prepend=self.last)
        if not self.count:
            self.first, self.first_at = float(values[0]), float(at[0])
            self.least = self.greatest = self.first
        self.growth += float(steps[steps > 0].sum())
        self.falls += int((steps < 0).sum())
        self.moves += int((steps != 0).sum())
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))
        self.last, self.last_at = float(values[-1]), float(at[-1])
        self.sum += float(values.sum())
        self.count += len(values)

    def add_one(self, at: float, value: float) -> None:
        """Take one reading, in the order of time; NaN is skipped."""
        if value != value:
            return
        if not self.count:
            self.first, self.first_at, self.least, self.greatest = value, at, value, value
        elif value > self.last:
            self.growth += value - self.last
            self.moves += 1
        elif value < self.last:
            self.falls += 1
            self.moves += 1
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)
        self.last, self.last_at = value, at
        self.sum += value
        self.count += 1

    @property
    def mean(self) -> float:
        """Mean of the readings, NaN without any."""
        return self.sum / self.count if self.count else math.nan

    @property
    def span_s(self) -> float:
        """From the first reading to the last."""
        return self.last_at - self.first_at if self.count else 0.0


class Notice:
    """The messages of one kind: how many, when, the numbers they carry, and which words they carried how often."""

    __slots__ = ("count", "first_at", "last_at", "numbers", "times", "words")

    def __init__(self) -> None:
        self.count = 0
        self.first_at = self.last_at = math.nan
        self.numbers: dict[str, Track] = {}
        self.words: dict[str, Counter[str]] = {}
        self.times: list[float] = []

    def add(self, at: float, detail: dict[str, str]) -> None:
        """Take one message, or several alike of one second (`count` in the detail)."""
        told = number(detail.get("count", "1"))
        self.count += max(1, int(told)) if not math.isnan(told) else 1
        self.first_at = at if math.isnan(self.first_at) else min(self.first_at, at)
        self.last_at = at if math.isnan(self.last_at) else max(self.last_at, at)
        if len(self.times) < TIMES:
            self.times.append(at)
        for key, text in list(detail.items())[:NUMBERS]:
            if key in ("kind", "count"):
                continue
            seen = self.words.setdefault(key, Counter()) if len(self.words) < NUMBERS else self.words.get(key)
            if seen is not None and (text in seen or len(seen) < TEXTS):
                seen[text[:80]] += 1
            value = number(text)
            if not math.isnan(value) and (key in self.numbers or len(self.numbers) < NUMBERS):
                self.numbers.setdefault(key, Track()).add_one(at, value)

    def last(self, *keys: str) -> float:
        """The last number under the first of these keys that was told; NaN for none."""
        return next((self.numbers[k].last for k in keys if k in self.numbers), math.nan)

    def greatest(self, *keys: str) -> float:
        """The greatest number under the first of these keys that was told; NaN for none."""
        return next((self.numbers[k].greatest for k in keys if k in self.numbers), math.nan)


class Sight:
    """All that was seen of one subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.tracks: dict[str, dict[str, Track]] = {}  # signal -> source -> track
        self.looks: list[tuple[float, dict[str, float]]] = []
        self.stride = 1
        self.count = 0  # looks that brought readings
        self.notices: dict[str, Notice] = {}
        self.events: dict[str, Notice] = {}
        self.facts: dict[str, str] = {}
        self.first_facts: dict[str, str] = {}
        self.histograms: dict[str, tuple[Histogram, Histogram]] = {}
        self.requests: FinishedRequests | None = None
        self.polls = self.errors = self.empty = 0
        self.fails = 0  # looks that failed since the last one that answered
        self.error, self.error_at, self.answered_at = "", math.nan, math.nan
        self.first_at = self.last_at = math.nan
        self.moments: object = None  # what moments.py made of the looks, until the next look

    # --- taking --------------------------------------------------------------------------------------------------

    def see(self, at: float) -> None:
        """Something of this subject was told at this time."""
        self.first_at = at if math.isnan(self.first_at) else min(self.first_at, at)
        self.last_at = at if math.isnan(self.last_at) else max(self.last_at, at)

    def take_frame(self, frame: Frame, look: dict[str, float]) -> None:
        """Readings: into the tracks, and the last row into the present look (which a better source may hold already)."""
        if len(frame.at) != 1:
            self._take_rows(frame, look)
            return
        at = float(frame.at[0])
        for name, value in zip(frame.names, frame.values[0].tolist(), strict=True):
            if value == value and (track := self._track(name, frame.source)) is not None:
                track.add_one(at, value)
                if key := self._key(name, frame.source, at):
                    look.setdefault(key, value)

    def _take_rows(self, frame: Frame, look: dict[str, float]) -> None:
        for column, name in enumerate(frame.names):
            track = self._track(name, frame.source) if len(frame.at) else None
            if track is None:
                continue
            values = frame.values[:, column]
            track.add(frame.at, values)
            known = values[~np.isnan(values)]
            if len(known) and (key := self._key(name, frame.source, float(frame.at[-1]))):
                look.setdefault(key, float(known[-1]))

    def _key(self, name: str, source: str, at: float) -> str:
        """Under which name a reading enters the look: a log's own count is not the page's; empty where the page told it."""
        if source != "log":
            return name
        if any(at - track.last_at <= BESIDE_S for other, track in self.tracks[name].items() if other != "log"):
            return ""
        return by_log(name) if CATALOG[name].kind == "counter" else name

    def _track(self, name: str, source: str) -> Track | None:
        """Where a reading goes; None for a name that the catalogue does not know."""
        told = self.tracks.get(name)
        if told is None:
            if name not in CATALOG:
                return None
            told = self.tracks[name] = {}
        track = told.get(source)
        if track is None:
            track = told[source] = Track()
        return track

    def take_look(self, at: float, look: dict[str, float]) -> None:
        """What was seen together at this time."""
        self.count += 1
        self.moments = None
        if self.looks and (self.count - 1) % self.stride:
            self.looks[-1] = (at, look)  # the last one is always the newest
            return
        self.looks.append((at, look))
        if len(self.looks) > LOOKS:
            self.looks = [*self.looks[:-1:2], self.looks[-1]]
            self.stride *= 2

    def take_event(self, event: Event) -> None:
        """A notice under its kind, any other event under its name."""
        notice = event.what == "notice"
        kept = self.notices if notice else self.events
        kind = event.detail.get("kind", "") if notice else event.what
        if kind in kept or len(kept) < KINDS:
            kept.setdefault(kind, Notice()).add(event.at, event.detail)

    def take_info(self, info: Info) -> None:
        """What the subject says of itself: the newest, and what it said first."""
        for key, value in list(info.labels.items())[:FACTS]:
            if key in self.facts or len(self.facts) < FACTS:
                self.first_facts.setdefault(key, value)
                self.facts[key] = value

    def take_histogram(self, told: Histogram) -> None:
        """The first and the last page of a histogram."""
        if told.name in self.histograms or len(self.histograms) < KINDS:
            first, last = self.histograms.get(told.name, (told, told))
            self.histograms[told.name] = (first if told.count >= last.count else told, told)

    def take_spans(self, spans: Spans, received_at: float) -> None:
        """Finished requests, the first `REQUESTS` of them."""
        self.requests = self.requests or FinishedRequests()
        if self.requests.rows < REQUESTS:
            self.requests.add(spans, received_at)
            self.requests.take_fresh()

    # --- asking --------------------------------------------------------------------------------------------------

    def track(self, signal: str) -> Track | None:
        """The signal from the source that told it most often."""
        told = self.tracks.get(signal)
        return max(told.values(), key=lambda t: t.count) if told else None

    def source(self, signal: str) -> str:
        """Which source that is; empty for none."""
        told = self.tracks.get(signal)
        return max(told, key=lambda s: told[s].count) if told else ""

    def last(self, signal: str) -> float:
        """The last reading; NaN for none."""
        track = self.track(signal)
        return track.last if track else math.nan

    def growth(self, signal: str) -> float:
        """By how much a counter grew between the first look and the last; NaN below two readings."""
        track = self.track(signal)
        return track.growth if track and track.count > 1 else math.nan

    def fact(self, *names: str) -> float:
        """A number that the subject says of itself or shows as a gauge, under the first name that has one; else NaN."""
        for name in names:
            value = self.last(name) if name in CATALOG else math.nan
            if math.isnan(value):
                value = number(self.facts.get(name, ""))
            if not math.isnan(value):
                return value
        return math.nan

    def mean_of(self, histogram: str) -> tuple[float, float]:
        """(mean, observations) between the first page and the last, or since the start where only one was seen."""
        first, last = self.histograms.get(histogram, (None, None))
        if first is None or last is None:
            return math.nan, 0.0
        n, total = last.count - first.count, last.sum - first.sum
        if n <= 0:
            n, total = last.count, last.sum
        return (total / n, n) if n > 0 else (math.nan, 0.0)

    def finished(self) -> dict[str, Floats]:
        """The columns of request_log.COLUMNS, one row a finished request, in the order of their ends; empty without spans."""
        if self.requests is None:
            return {}
        self.requests.settle(math.inf)
        return self.requests.window(-math.inf, math.inf)

    def said(self, *kinds: str) -> int:
        """How many notices of these kinds came."""
        return sum(self.notices[k].count for k in kinds if k in self.notices)

    @property
    def engine_kind(self) -> str:
        """vllm, sglang, …; empty where nothing says it."""
        return self.facts.get("dialect") or self.facts.get("engine_kind", "")


def by_log(counter: str) -> str:
    """The name in a look of what a log's lines add up to: it begins with the log, not with the engine."""
    return f"{counter} by the log"


def number(text: str) -> float:
    """A finite number from a string; NaN for anything else."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
