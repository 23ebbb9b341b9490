"""A world of one engine and its device in virtual time: you say what is to be seen, the pipeline gets it as batches.

Gauges are levels, counters are increases per second; both under the catalogue's names, and either may be a function of
the seconds since the world began. What is seen by the step ring comes `hz` times a second under source `steps`, a page
once a second under source `page`. Times are unix seconds. Every second is one call of `Pipeline.step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..catalog import CATALOG
from ..config import Config
from ..memory.view import Window
from ..model import (
    OUTCOMES,
    STAGES,
    Batch,
    Event,
    Floats,
    Frame,
    Histogram,
    Info,
    LiveRequests,
    OpenStep,
    Spans,
    Subject,
    Tick,
)
from ..pipeline import Pipeline

START = 1_764_000_000.0
"""When worlds begin, unix seconds."""
BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
"""Bucket bounds of the histograms that worlds show, seconds."""
Level = float | Sequence[float] | Callable[[float], float]
"""A constant, one value a second (the last one stays), or a function of the seconds since the world began."""
Sees = Literal["ring", "page"]
Call = tuple[float, tuple[Batch, ...]]


class InFlight(NamedTuple):
    """A row of the live request table. `stage`: 1 queue, 2 prefill, 3 decode, 4 requeue (docs/ring.md)."""

    request: int
    arrived_at: float
    stage: float = 3.0
    prompt_tokens: float = 100.0
    blocks: float = 10.0
    generated_tokens: float = 0.0
    max_tokens: float = 256.0
    preemptions: float = 0.0


class World:
    """One engine, seen through its step ring or its page, and the pipeline that watches it.

    `sees` decides what source tells the gauges and counters. `gpu` names a device; without it there are no device
    readings, and `gpu_…` signals raise ValueError.
    """

    def __init__(
        self, config: Config | None = None, engine: str = "shim", gpu: str = "", sees: Sees = "ring", hz: int = 5
    ) -> None:
        self.pipeline = Pipeline(config)
        self.subject, self.device = Subject(engine=engine), Subject(gpu=gpu)
        self.sees: Sees = sees
        self.now = START
        self.calls: list[Call] = []
        self.rows_per_s = hz if sees == "ring" else 1
        self._signals: dict[str, tuple[float, Level]] = {}  # name -> (since, level or rate)
        self._counts: dict[str, float] = {}
        self._observed: dict[str, list[float]] = {}
        self._spans: list[tuple[int, int, float, float, float, float, int]] = []
        self._in_flight: tuple[InFlight, ...] | None = None
        self._events: list[Event] = []
        self._info: dict[str, str] = {}
        self._step: OpenStep | None = None
        self._failing: dict[str, str] = {}

    # --- what is to be seen --------------------------------------------------------------------------------------

    def set(self, **signals: Level | None) -> None:
        """Levels of gauges and increases per second of counters from now on; None takes a signal away.

        KeyError for a name that the catalogue does not know.
        """
        for name, level in signals.items():
            kind = CATALOG[name].kind
            if kind == "histogram":
                raise ValueError(f"{name} is a histogram: use observe()")
            if name.startswith("gpu_") and not self.device.gpu:
                raise ValueError(f"{name}: this world has no GPU")
            if level is None:
                self._signals.pop(name, None)
            else:
                self._signals[name] = (self.now, level)

    def observe(self, name: str, *values: float) -> None:
        """Observations of a histogram, in seconds; its page shows them from the next second on."""
        if CATALOG[name].kind != "histogram":
            raise ValueError(f"{name} is no histogram: use set()")
        self._observed.setdefault(name, []).extend(values)

    def finish(
        self,
        request: int,
        arrived_at: float,
        queue_s: float = 0.01,
        prefill_s: float = 0.05,
        decode_s: float = 2.0,
        prompt_tokens: float = 100.0,
        output_tokens: float = 50.0,
        outcome: str = "stop",
    ) -> None:
        """A request that has ended: its spans come with the next second."""
        a = arrived_at
        b, c = a + queue_s, a + queue_s + prefill_s
        for stage, start, end in (
            ("queue", a, b),
            ("prefill", b, c),
            ("decode", c, c + decode_s),
            ("request", a, c + decode_s),
        ):
            row = (request, STAGES.index(stage), start, end, prompt_tokens, output_tokens, OUTCOMES.index(outcome))
            self._spans.append(row)

    def in_flight(self, rows: Iterable[InFlight] | None) -> None:
        """The live request table from now on; None takes it away."""
        self._in_flight = None if rows is None else tuple(rows)

    def event(self, kind: str, /, **detail: str) -> None:
        """Something that happened now: restart, version, arguments, change, maintenance."""
        self._events.append(Event(self.subject, self.now, kind, detail))

    def says(self, **labels: str) -> None:
        """What the engine says of itself: model, max_num_seqs and the like."""
        self._info.update(labels)

    def hang(self, running: float = 1.0, waiting: float = 0.0, prefill_tokens: float = 0.0) -> None:
        """A step begins now and does not end until `resume`: the ring shows it, and no completed step."""
        self._step = OpenStep(self.subject, self.now, self.now, prefill_tokens, running, running, waiting)

    def resume(self) -> None:
        """The step in progress ends."""
        self._step = None

    def fail(self, role: str, error: str = "connection refused") -> None:
        """Polls of a role (engine, steps, spans, gpu) fail from now on; `error=""` ends that."""
        self._failing[role] = error
        if not error:
            del self._failing[role]

    # --- time ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float, **signals: Level | None) -> list[Tick]:
        """Let whole seconds pass, with these signals (see `set`), and return what the pipeline said at each."""
        self.set(**signals)
        return [self.second() for _ in range(round(seconds))]

    def second(self) -> Tick:
        """One second: what was seen in it, and what the pipeline says of it."""
        batches = tuple(self._batches())
        self.now += 1.0
        self.calls.append((self.now, batches))
        return self.pipeline.step(self.now, batches)

    def window(self) -> Window:
        """What a rule may ask of the engine now. ValueError before the first second."""
        return self.pipeline.window(self.subject)

    # --- how it is told ------------------------------------------------------------------------------------------

    def rows(self) -> tuple[Floats, dict[str, Floats]]:
        """Times and columns of the second that begins now, for the engine's own signals."""
        at = self.now + instants(self.rows_per_s)
        own = {n: s for n, s in self._signals.items() if not n.startswith("gpu_")}
        return at, {name: self._column(name, *signal, at) for name, signal in own.items()}

    def _column(self, name: str, since: float, level: Level, at: Floats) -> Floats:
        values = np.array([_at(level, t, since) for t in at.tolist()])
        if CATALOG[name].kind != "counter":
            return values
        with np.errstate(over="ignore", invalid="ignore"):  # a world may show nonsense on purpose
            total = self._counts.get(name, 0.0) + np.cumsum(values) / len(at)
        self._counts[name] = float(total[-1])
        return total

    def _batches(self) -> Iterable[Batch]:
        until = self.now + 1.0 - 1e-3
        ring = self.sees == "ring"
        role, source = ("steps", "steps") if ring else ("engine", "page")
        if role in self._failing:
            yield Batch(source, role, self.subject, until, error=self._failing[role])
        else:
            at, columns = self.rows()
            frames = (frame_of(self.subject, source, at, columns),) if columns and not (ring and self._step) else ()
            steps = (_restamped(self._step, until),) if ring and self._step else ()
            events, self._events = tuple(self._events), []
            info = (Info(self.subject, until, dict(self._info)),) if self._info else ()
            live = () if self._in_flight is None else (_table(self.subject, until, self._in_flight),)
            yield Batch(
                source, role, self.subject, until,
                frames=frames, open_steps=steps, events=events, info=info, requests=live,
            )  # fmt: skip
        yield from self._histograms(until)
        if self._spans:
            yield Batch("spans", "spans", self.subject, until, spans=(self._take_spans(),))
        if self.device.gpu and "gpu" in self._failing:
            yield Batch("readings", "gpu", self.device, until, error=self._failing["gpu"])
        elif self.device.gpu:
            at = np.array([self.now + 0.5])
            gpu = {n: self._column(n, *s, at) for n, s in self._signals.items() if n.startswith("gpu_")}
            if gpu:
                frame = frame_of(self.device, "readings", at, gpu)
                yield Batch("readings", "gpu", self.device, until, frames=(frame,))

    def _histograms(self, at: float) -> Iterable[Batch]:
        if self._observed and "engine" not in self._failing:
            shown = tuple(_histogram(self.subject, name, at, v) for name, v in self._observed.items())
            yield Batch("page", "engine", self.subject, at, histograms=shown)

    def _take_spans(self) -> Spans:
        columns = [np.array(c) for c in zip(*self._spans, strict=True)]
        self._spans = []
        request, stage, start, end, prompt, output, outcome = columns
        return Spans(
            self.subject, "spans", request.astype(np.uint64), stage.astype(np.uint8), start, end,
            prompt, output, np.full(len(start), math.nan), outcome.astype(np.uint8),
        )  # fmt: skip


def instants(n: int) -> Floats:
    """The middles of n equal parts of a second."""
    return np.asarray((np.arange(n) + 0.5) / n, np.float64)


def _at(level: Level, t: float, since: float) -> float:
    if callable(level):
        return float(level(t - START))
    if isinstance(level, int | float):
        return float(level)
    return float(level[min(len(level) - 1, int(t - since))])


def frame_of(subject: Subject, source: str, at: Floats, columns: Mapping[str, Floats]) -> Frame:
    """A frame of these columns, one row for each time."""
    return Frame(subject, source, tuple(columns), at, np.column_stack(list(columns.values())))


def _restamped(step: OpenStep, at: float) -> OpenStep:
    return OpenStep(
        step.subject, at, step.begun_at, step.prefill_tokens, step.decode_tokens, step.running, step.waiting
    )


def _table(subject: Subject, at: float, rows: tuple[InFlight, ...]) -> LiveRequests:
    c = np.array([row[1:] for row in rows]).reshape(len(rows), 7).T
    ids = np.array([row.request for row in rows], np.uint64)
    return LiveRequests(subject, at, ids, c[0], c[1], c[2], c[5], c[4], c[3], c[6])


def _histogram(subject: Subject, name: str, at: float, values: list[float]) -> Histogram:
    cumulative = np.searchsorted(np.sort(values), BOUNDS, side="right").astype(float)
    return Histogram(
        subject, "page", name, at, BOUNDS, tuple(cumulative.tolist()), math.fsum(values), float(len(values))
    )
