"""Turns an engine's exposition pages into frames, histograms, events and facts, for live polls and captures alike.

One EnginePage follows one engine: it finds the dialect, binds it to each page layout, keeps epochs and infers arrivals.
Where a fast lane exists, its signals carry the source `page-fast`, all others `page`: a series has one cadence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from ...catalog import CATALOG
from ...dialects import all_dialects, recognise
from ...dialects.dialect import FAST_SIGNALS, Dialect
from ...model import Event, Frame, Histogram, Info, Subject
from ...wire.exposition import DEFAULT_LIMITS, Limits, parse
from ...wire.exposition_plan import PageReader, Reading
from ..facts import canonical_facts, number
from .arrivals import ArrivalBook
from .binding import RankBinding, bind
from .epochs import Epochs
from .iterations import is_list, newest
from .ranks import RankNumbers
from .readout import HistogramBook, possible, signals

Lane = Literal["whole", "slow", "fast"]


class UnknownPageError(ValueError):
    """The page belongs to no engine that a dialect describes."""


class CutPageError(ValueError):
    """The page stops before its end: cut by the engine, or larger than the limit."""


class PageReport(msgspec.Struct, frozen=True):
    """What one page brought. `look_again`: counters fell, and only a whole page can say why."""

    frames: tuple[Frame, ...]
    histograms: tuple[Histogram, ...]
    events: tuple[Event, ...]
    info: tuple[Info, ...]
    names: frozenset[str]
    dropped: int
    look_again: bool


class _Layout(msgspec.Struct, frozen=True):
    """A lane's reader and the binding of its current layout."""

    reader: PageReader
    layout: int = 0
    ranks: tuple[RankBinding, ...] = ()
    bad: int = 0


class _Rank:
    """What is remembered of one rank."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.arrivals = ArrivalBook()
        self.histograms = HistogramBook()
        self.facts: dict[str, str] = {}


class EnginePage:
    """Reads the pages of one engine. `dialect` is a name or "auto"; KeyError for an unknown name."""

    def __init__(self, engine: str, dialect: str = "auto", limits: Limits = DEFAULT_LIMITS) -> None:
        if dialect != "auto":
            all_dialects()[dialect]
        self._engine = engine
        self._only = dialect
        self._limits = limits
        self._layouts: dict[Lane, _Layout] = {}
        self._ranks: dict[int, _Rank] = {}
        self._numbers = RankNumbers()
        self._beside: tuple[str, ...] = ()
        self.dialect: Dialect | None = None
        self.prefix = ""
        self.fast_apart = False

    def read(self, body: bytes, at: float, lane: Lane = "whole", stamp: float = math.nan) -> PageReport:
        """Read a page received at `at`; `stamp`: a start time that came beside it. UnknownPageError or CutPageError."""
        if is_list(body):
            return self._drained(body, at)
        if self.dialect is None:
            self._detect(body)
        layout, reading = self._read(body, lane)
        if lane == "whole" and reading.relearned and not layout.ranks:
            self._detect(body)  # another engine answers now
            layout, reading = self._read(body, lane)
            if not layout.ranks and not reading.cut:
                raise UnknownPageError(
                    "no dialect recognises this page: names of an engine, "
                    f"and no signal that can be read ({reading.dropped} lines dropped)"
                )
        if reading.cut:  # sums over half of their series would look like a restart
            most = f"{self._limits.page_bytes} bytes and {self._limits.lines} lines are read"
            raise CutPageError(f"the page has no end, or is too long ({len(body)} bytes; at most {most})")
        frames: list[Frame] = []
        histograms: list[Histogram] = []
        events: list[Event] = []
        info: list[Info] = []
        dropped = reading.dropped + layout.bad
        look_again = False
        for rank in layout.ranks:
            subject = Subject(engine=self._engine, rank=rank.rank)
            values, bad = signals(rank, reading.values)
            dropped += bad
            verdict = self._follow(rank, values, reading.values, stamp, at)
            look_again |= verdict == "unsure"
            if verdict in ("restart", "ambiguous"):
                events.append(self._event(subject, verdict, at))
            self._complete(rank, values, at)
            frames += _frames(subject, values, at, self.fast_apart)
            found, bad = self._ranks[rank.rank].histograms.read(subject, rank, reading.values, at)
            histograms += found
            dropped += bad
            if lane == "whole":
                info.append(Info(subject, at, self._ranks[rank.rank].facts))
        return PageReport(
            tuple(frames), tuple(histograms), tuple(events), tuple(info), reading.names, dropped, look_again
        )

    def _drained(self, body: bytes, at: float) -> PageReport:
        """What a list of iterations says that reading has emptied. Raises UnknownPageError where it says nothing."""
        values, dropped = possible(newest(body))
        if not values:
            raise UnknownPageError(f"no dialect recognises this page ({len(body)} bytes){_hint(body, frozenset())}")
        subject = Subject(engine=self._engine)
        frames = _frames(subject, values, at, fast_apart=False)
        info = Info(subject, at, {"dialect": "trtllm", "stale_possible": ",".join(sorted(values))[:256]})
        return PageReport(tuple(frames), (), (), (info,), frozenset(), dropped, look_again=False)

    def _detect(self, body: bytes) -> None:
        page = parse(body, frozenset(), self._limits)
        found = recognise(page.names, self._only)
        if not found:
            self.dialect = None
            what = "no dialect" if self._only == "auto" else f"not the dialect {self._only}, which"
            raise UnknownPageError(
                f"{what} recognises this page ({len(page.names)} metrics, {len(body)} bytes){_hint(body, page.names)}"
            )
        self._beside = tuple(dialect.name for dialect, _ in found[1:])
        if found[0] != (self.dialect, self.prefix):
            self.dialect, self.prefix = found[0]
            self._layouts.clear()

    def _read(self, body: bytes, lane: Lane) -> tuple[_Layout, Reading]:
        assert self.dialect is not None
        layout = self._layouts.get(lane)
        if layout is None:
            layout = _Layout(PageReader(self.dialect.sample_names(self.prefix), self._limits))
        reading = layout.reader.read(body)
        if reading.layout != layout.layout:
            only = FAST_SIGNALS if lane == "fast" else None
            ranks, bad = bind(self.dialect, self.prefix, reading.series, self._numbers, only)
            known = any(rank.says_something for rank in ranks)
            layout = _Layout(layout.reader, reading.layout, ranks if known else (), bad)
            for rank in layout.ranks:
                kept = self._ranks.setdefault(rank.rank, _Rank())
                if lane == "whole":
                    kept.facts = self._facts(rank, ranks)
        self._layouts[lane] = layout
        return layout, reading

    def _facts(self, rank: RankBinding, ranks: Sequence[RankBinding]) -> dict[str, str]:
        """What the page says of a rank, which labels name it, and which of its numbers do not move with the work."""
        assert self.dialect is not None
        sharing = {dict(other.key).get(self.dialect.rank_labels[0]) for other in ranks}
        facts = canonical_facts(rank.facts, len(sharing))[0] | {"dialect": self.dialect.name}
        for quality in ("at_finish", "stale_possible", "lifetime"):
            names = sorted(one.name for one in rank.sums if one.quality == quality)
            if names or quality in self._ranks[rank.rank].facts:  # what was said before must be taken back
                facts[quality] = ",".join(names)
        if rank.key:
            facts["rank"] = ",".join(f"{label}={value}" for label, value in rank.key)[:256]
        if self._beside:
            facts["also_on_page"] = ",".join(self._beside)
        return facts

    def _follow(
        self, rank: RankBinding, values: dict[str, float], raw: Sequence[float], stamp: float, at: float
    ) -> str:
        """Restart detection; counters become unknown while several processes answer in turn."""
        kept = self._ranks[rank.rank]
        counters = {name: value for name, value in values.items() if CATALOG[name].kind == "counter"}
        stamps = [stamp, values.get("process_start_seconds", math.nan), *(raw[i] for i in rank.stamps)]
        stamp = max((s for s in stamps if s == s), default=math.nan)
        verdict = kept.epochs.update(counters, stamp, at)
        if verdict == "restart":
            kept.arrivals.restart()
        if kept.epochs.ambiguous(at):
            for name in counters:
                values[name] = math.nan
        return verdict

    def _event(self, subject: Subject, verdict: str, at: float) -> Event:
        epochs = self._ranks[subject.rank].epochs
        if verdict == "restart":
            return Event(subject, at, "restart", {"epoch": str(epochs.epoch), "how": epochs.how})
        return Event(
            subject, at, "ambiguous", {"why": "counters fall and rise again: several processes answer in turn"}
        )

    def _complete(self, rank: RankBinding, values: dict[str, float], at: float) -> None:
        """Add what is inferred and what the facts say."""
        assert self.dialect is not None
        kept = self._ranks[rank.rank]
        if "req_arrived_total" in self.dialect.inferred:
            parts = [values.get(n, math.nan) for n in ("req_finished_total", "req_running", "req_waiting")]
            ended = [values.get(n, 0.0) for n in self.dialect.also_ended]
            values["req_arrived_total"] = kept.arrivals.update(sum(parts) + sum(ended), at)
        for name in self.dialect.from_facts:
            values.setdefault(name, number(kept.facts.get(name, "")))


_FAST = frozenset(FAST_SIGNALS)


def _frames(subject: Subject, values: dict[str, float], at: float, fast_apart: bool) -> list[Frame]:
    """A frame of one row for each cadence: the fast lane's signals are a series of their own where there is one."""
    fast = tuple(n for n in values if n in _FAST) if fast_apart else ()
    rest = tuple(n for n in values if n not in fast)
    return [
        Frame(subject, source, names, np.array([at]), np.array([[values[n] for n in names]]))
        for source, names in (("page-fast", fast), ("page", rest))
        if names
    ]


_OF_ANY_PROCESS = ("python_", "process_", "http_", "fastapi_", "go_", "promhttp_", "scrape_", "target_info", "up")


def _hint(body: bytes, names: frozenset[str]) -> str:
    """What a page is that is no engine's, where that can be told."""
    if is_list(body) or (body.lstrip()[:1] == b"{" and b'":' in body[:200]):
        return ": it is JSON; trtllm-serve's list of iterations is emptied by reading, its page is /prometheus/metrics"
    if any(name.startswith(("inference_pool_", "inference_objective_", "inference_extension_")) for name in names):
        return ": it is a router's (an endpoint picker), not an engine's"
    if any(name.startswith("DCGM_FI_") for name in names):
        return ": it is dcgm-exporter's; it belongs into gpu_url"
    if any(name.startswith("nv_inference_") for name in names):
        return ": it is Triton's own; no series of the engine behind it (vllm:*, nv_trt_llm_*) is on it"
    if names and all(name.startswith(_OF_ANY_PROCESS) for name in names):
        return ": only the process's own metrics are on it; the engine's are switched off or served elsewhere"
    return ""
