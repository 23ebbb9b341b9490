"""Tells a rule that is blind from one that has only not looked for long enough.

The doctor looks for a few seconds, rules ask for minutes. So what the sources said last is said again, second after
second, counters growing as they grew, to the same pipeline: what is still missing then is missing, and what is not was
only a matter of time. Nothing that is judged on the way is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from ..catalog import CATALOG
from ..model import Batch, Blind, Frame, Histogram
from ..pipeline import Pipeline
from ..recording.quantize import quantized

AHEAD_S = 90
"""The longest that a rule needs to see: more than the half minute to two minutes of its spans that it asks for."""


class Outlook(msgspec.Struct, frozen=True):
    """`blind`: what no waiting cures. `soon`: rule → subject → seconds until it sees."""

    blind: tuple[Blind, ...]
    soon: dict[str, dict[str, float]]


class Continuation:
    """What the sources said first and last, of which more is made."""

    def __init__(self) -> None:
        self._heads: dict[str, Batch] = {}
        self._frames: dict[Hashable, tuple[str, Frame, Frame]] = {}
        self._histograms: dict[Hashable, tuple[str, Histogram]] = {}

    def hear(self, batches: Iterable[Batch]) -> None:
        """Take what was polled in one second."""
        for batch in batches:
            before = self._heads.get(batch.source, batch)
            self._heads[batch.source] = replace(
                batch, frames=(), histograms=(), spans=(), events=(), info=(), dropped=0,
                requests=batch.requests[-1:] or before.requests, open_steps=batch.open_steps,
            )  # fmt: skip
            for frame in batch.frames:
                if len(frame.at):
                    key = frame.subject, frame.source, frame.names
                    first = self._frames[key][1] if key in self._frames else frame
                    self._frames[key] = batch.source, first, frame
            for histogram in batch.histograms:
                self._histograms[histogram.subject, histogram.source, histogram.name] = batch.source, histogram

    def look_ahead(self, pipeline: Pipeline, now: float, seconds: int = AHEAD_S) -> Outlook:
        """Go on from `now`, when `pipeline` was last asked; it is of no use for anything else afterwards."""
        was = {(b.rule, b.subject) for b in pipeline.blind}
        blind, last_blind = pipeline.blind, dict.fromkeys(was, 0.0)
        for ahead_s in range(1, seconds + 1):
            blind = pipeline.step(*quantized(now + ahead_s, self._said_again(ahead_s))).blind
            last_blind |= {(b.rule, b.subject): float(ahead_s) for b in blind}
        still = {(b.rule, b.subject) for b in blind}
        soon: dict[str, dict[str, float]] = {}
        for rule, subject in sorted(was - still):
            soon.setdefault(rule, {})[subject] = last_blind[rule, subject] + 1
        return Outlook(tuple(b for b in blind if (b.rule, b.subject) in was), soon)

    def _said_again(self, ahead_s: float) -> list[Batch]:
        frames: dict[str, list[Frame]] = {}
        for source, first, last in self._frames.values():
            frames.setdefault(source, []).append(_later(first, last, ahead_s))
        histograms: dict[str, list[Histogram]] = {}
        for source, histogram in self._histograms.values():
            histograms.setdefault(source, []).append(replace(histogram, at=histogram.at + ahead_s))
        return [
            replace(
                head, received_at=head.received_at + ahead_s,
                frames=tuple(frames.get(source, ())), histograms=tuple(histograms.get(source, ())),
                requests=tuple(replace(one, at=one.at + ahead_s) for one in head.requests),
                open_steps=tuple(
                    replace(one, at=one.at + ahead_s, begun_at=one.begun_at + ahead_s) for one in head.open_steps
                ),
            )
            for source, head in self._heads.items()
        ]  # fmt: skip


def _later(first: Frame, last: Frame, ahead_s: float) -> Frame:
    """The last row once more, with counters as far on as their growth so far takes them."""
    values = last.values[-1].copy()
    took_s = float(last.at[-1] - first.at[0])
    if took_s > 0:
        counts = np.array([name in CATALOG and CATALOG[name].kind == "counter" for name in last.names])
        growth = np.where(counts, np.maximum(last.values[-1] - first.values[0], 0.0), 0.0)
        values = values + np.nan_to_num(growth) / took_s * ahead_s
    return Frame(last.subject, last.source, last.names, last.at[-1:] + ahead_s, values[None, :])
