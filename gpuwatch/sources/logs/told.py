"""What a reader has told and nobody has fetched: readings by rank, notices by second, facts. And how that is a Batch."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np

from ...model import Batch, Event, Frame, Histogram, Info, Subject
from .kinds import WORST_BY

SOURCE = "log"
ROLE = "log"
MOST_NOTICES = 64
"""Different notices of one second; equal ones are one with a count."""

Row = dict[str, float]


class NoticeKey(msgspec.Struct, frozen=True):
    """Equal notices of one second and rank are one."""

    second: int
    rank: int
    what: str
    detail: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        """The kind of a notice; empty for another event."""
        return dict(self.detail).get("kind", "")


class Told:
    """Collects; `is_empty` when there is nothing."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[float, Row]]] = {}
        self.notices: Counter[NoticeKey] = Counter()
        self.histograms: list[Histogram] = []
        self.facts: dict[str, str] = {}
        self.facts_at = math.nan

    @property
    def is_empty(self) -> bool:
        """Nothing to tell."""
        return not (self.rows or self.notices or self.facts or self.histograms)

    def add_rows(self, rank: int, rows: list[tuple[float, Row]]) -> None:
        """Readings of a rank, in the order of time."""
        if rows:
            self.rows.setdefault(rank, []).extend(rows)

    def add_notice(self, key: NoticeKey, times: int = 1) -> bool:
        """False where there are too many different ones already. Of kinds that come often, the worst stays."""
        if key.kind in WORST_BY:
            self._add_worst(key, times)
            return True
        if key not in self.notices and len(self.notices) >= MOST_NOTICES:
            return False
        self.notices[key] += times
        return True

    def _add_worst(self, key: NoticeKey, times: int) -> None:
        same = next((k for k in self.notices if (k.second, k.rank, k.kind) == (key.second, key.rank, key.kind)), key)
        times += self.notices.pop(same, 0)
        self.notices[max(same, key, key=badness)] = times

    def add_histogram(self, histogram: Histogram) -> None:
        """A histogram as it stands now; the newest of a moment counts."""
        self.histograms = [h for h in self.histograms if (h.name, h.at) != (histogram.name, histogram.at)]
        self.histograms.append(histogram)

    def add_facts(self, at: float, labels: dict[str, str]) -> None:
        """What the engine says of itself."""
        self.facts.update(labels)
        self.facts_at = at

    def batch(self, engine: str, at: float, dropped: int = 0) -> Batch:
        """All of it, as received at `at`."""
        whole = Subject(engine=engine)
        return Batch(
            f"log:{engine}", ROLE, whole, at,
            frames=tuple(
                _frame(Subject(engine=engine, rank=rank), rows) for rank, rows in sorted(self.rows.items())
            ),
            histograms=tuple(self.histograms),
            events=tuple(_event(engine, key, times) for key, times in self.notices.items()),
            info=(Info(whole, self.facts_at, dict(self.facts)),) if self.facts else (),
            dropped=dropped,
        )  # fmt: skip


def _frame(subject: Subject, rows: list[tuple[float, Row]]) -> Frame:
    names = tuple(sorted({name for _, row in rows for name in row}))
    values = np.array([[row.get(name, math.nan) for name in names] for _, row in rows], np.float64)
    return Frame(subject, SOURCE, names, np.array([at for at, _ in rows], np.float64), values)


def _event(engine: str, key: NoticeKey, times: int) -> Event:
    detail = dict(key.detail)
    if times > 1:
        detail["count"] = str(times)
    return Event(Subject(engine=engine, rank=key.rank), float(key.second), key.what, detail)


def badness(key: NoticeKey) -> float:
    """By how many seconds a notice of WORST_BY is bad."""
    detail = dict(key.detail)
    return next((float(detail[name]) for name in WORST_BY[key.kind] if name in detail), 0.0)
