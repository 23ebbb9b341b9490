"""What the sources of one incident brought: timed batches, what was recognised, and what qualifies it.

Times are unix seconds. `calls` puts the batches on the pipeline's one-second grid. A silence longer than the pipeline
remembers is stepped over: nothing could be judged in it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..model import Batch

Call = tuple[float, tuple[Batch, ...]]

SILENCE_S = 900.0
"""So long is the pipeline's memory: of a longer silence only the beginning is played."""
MAX_NOTES = 50


class MaterialError(ValueError):
    """A source that cannot be read. The message names the file, and the line or the key where there is one."""


class Found(msgspec.Struct, frozen=True):
    """One source as recognised: `looks` are its pages, lines or records; times are NaN where it has none."""

    name: str
    what: str
    looks: int = 0
    since: float = math.nan
    until: float = math.nan
    cadence_s: float = math.nan


class Material:
    """Collects what is read. `engine` is the subject of everything that does not say whose it is."""

    def __init__(self, engine: str = "engine") -> None:
        self.engine = engine
        self.items: list[tuple[float, Batch]] = []
        self.found: list[Found] = []
        self.notes: list[str] = []
        self.cut_notes = 0

    def add(self, at: float, batches: Iterable[Batch]) -> None:
        """Batches that were received at `at`."""
        self.items += [(at, batch) for batch in batches]

    def note(self, text: str) -> None:
        """Say something that qualifies the answer; bounded, and each thing once."""
        if text in self.notes:
            return
        if len(self.notes) >= MAX_NOTES:
            self.cut_notes += 1
        else:
            self.notes.append(text)

    def saw(self, name: str, what: str, times: Sequence[float]) -> None:
        """A source and when it was looked at."""
        known = sorted(t for t in times if t == t)
        since, until = (known[0], known[-1]) if known else (math.nan, math.nan)
        self.found.append(Found(name, what, len(times), since, until, cadence_s(known)))

    @property
    def span(self) -> tuple[float, float]:
        """First and last time of what was added; NaN where there is nothing."""
        times = [t for t, _ in self.items]
        return (min(times), max(times)) if times else (math.nan, math.nan)


def cadence_s(times: Sequence[float]) -> float:
    """The usual time between two looks; NaN below two."""
    gaps = [b - a for a, b in itertools.pairwise(times) if b > a]
    return statistics.median(gaps) if gaps else math.nan


def calls(items: Iterable[tuple[float, Batch]], grid_s: float = 1.0) -> Iterator[Call]:
    """The pipeline's calls: every second from the first item to the last, with what had been received by then."""
    ordered = sorted(items, key=lambda item: item[0])
    if not ordered:
        return
    now = math.ceil(ordered[0][0] / grid_s - 1e-6) * grid_s
    waiting: list[Batch] = []
    for at, batch in ordered:
        if at > now + 1e-6:
            yield now, tuple(waiting)
            waiting = []
            heard = now
            now += grid_s
            while at > now + 1e-6 and now - heard < SILENCE_S:
                yield now, ()
                now += grid_s
            if at > now + 1e-6:
                now = math.ceil(at / grid_s - 1e-6) * grid_s
        waiting.append(batch)
    yield now, tuple(waiting)
    yield now + grid_s, ()  # the second of the last readings is closed by the next one
