"""A bounded summary of everything that was seen: per engine rank, device and host, whatever the sources were.

Clues are functions of a Sighting alone, so that a log excerpt, one page, two pages or an hour are judged by the same words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config import Config
from ..memory.history import SOURCE_ORDER
from ..model import Batch, Subject
from ..sources.gpu.device_map import engines_of
from .track import Sight

SUBJECTS = 512
UNREAD = 64
TOLD = frozenset({"log", "spans", "changes"})
"""Roles that are no look: that something was told does not mean that the page answers."""
Call = tuple[float, tuple[Batch, ...]]


class Sighting:
    """What was seen between the first call and the last. `sources` are names of frames' sources and roles of batches."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.sights: dict[str, Sight] = {}
        self.calls = 0
        self.first_at = self.last_at = math.nan
        self.sources: set[str] = set()
        self.roles: set[str] = set()
        self.cut = 0
        self.failed: dict[str, str] = {}  # module of a class -> what went wrong in it

    def take(self, now: float, batches: Sequence[Batch]) -> None:
        """One call: what arrived by `now`."""
        looks: dict[str, dict[str, float]] = {}
        for batch in sorted(batches, key=_trusted):
            self._take(batch, looks)
        if looks or batches:
            self.calls += 1
            self.first_at = now if math.isnan(self.first_at) else self.first_at
            self.last_at = now
        for key, look in looks.items():
            if look:
                self.sights[key].take_look(now, look)

    def _take(self, batch: Batch, looks: dict[str, dict[str, float]]) -> None:
        self.roles.add(batch.role)
        owner = self.sight(batch.subject) if batch.subject != Subject() else None
        if owner is not None:
            owner.polls += 1
            owner.see(batch.received_at)
            if batch.error is not None:
                owner.errors += 1
                owner.fails += batch.role not in TOLD
                owner.error, owner.error_at = batch.error[:300], batch.received_at
            else:
                if batch.role not in TOLD:
                    owner.answered_at, owner.fails = batch.received_at, 0
                owner.empty += not (batch.frames or batch.events or batch.histograms)
        for frame in batch.frames:
            self.sources.add(frame.source)
            if (seen := self.sight(frame.subject)) is not None and len(frame.at):
                seen.see(float(frame.at[-1]))
                seen.take_frame(frame, looks.setdefault(frame.subject.key, {}))
        for histogram in batch.histograms:
            if (seen := self.sight(histogram.subject)) is not None:
                seen.take_histogram(histogram)
        for spans in batch.spans:
            if (seen := self.sight(spans.subject)) is not None:
                seen.take_spans(spans, batch.received_at)
        for event in batch.events:
            if (seen := self.sight(event.subject)) is not None:
                seen.see(event.at)
                seen.take_event(event)
        for info in batch.info:
            if (seen := self.sight(info.subject)) is not None:
                seen.take_info(info)

    def sight(self, subject: Subject) -> Sight | None:
        """The memory of a subject; None beyond the bound."""
        seen = self.sights.get(subject.key)
        if seen is None:
            if len(self.sights) >= SUBJECTS:
                self.cut += 1
                return None
            seen = self.sights[subject.key] = Sight(subject)
        return seen

    # --- asking --------------------------------------------------------------------------------------------------

    @property
    def span_s(self) -> float:
        """From the first call to the last."""
        return self.last_at - self.first_at if self.calls else 0.0

    @property
    def engines(self) -> list[Sight]:
        """Every engine rank, by name and rank."""
        return [s for _, s in sorted(self.sights.items()) if s.subject.engine]

    @property
    def gpus(self) -> list[Sight]:
        """Every device or MIG instance."""
        return [s for _, s in sorted(self.sights.items()) if s.subject.gpu]

    @property
    def hosts(self) -> list[Sight]:
        """Every host."""
        return [s for _, s in sorted(self.sights.items()) if s.subject.host]

    def gpus_of(self, engine: Sight) -> list[Sight]:
        """The devices that serve an engine: by the map or the config; all of them where there is one engine and no map."""
        mapped = {g.subject.gpu: engines_of(g.facts) for g in self.gpus}
        if any(engine.subject.engine in (engines or ()) for engines in mapped.values()):
            return [g for g in self.gpus if engine.subject.engine in (mapped[g.subject.gpu] or ())]
        for target in self.config.engines:
            if target.name == engine.subject.engine and target.gpus:
                return [g for g in self.gpus if g.subject.gpu in target.gpus]
        if any(engines is not None for engines in mapped.values()):
            return []  # they are known to be others'
        return self.gpus if len({e.subject.engine for e in self.engines}) == 1 else []

    def near(self, engine: Sight, signal: str) -> tuple[Sight, float]:
        """The greatest reading of the engine itself, else of the only host: (who told it, value), NaN for none."""
        for seen in (engine, *(self.hosts if len(self.hosts) == 1 else ())):
            track = seen.track(signal)
            if track is not None and track.count:
                return seen, track.greatest
        return engine, math.nan


def gather(calls: Sequence[Call], config: Config | None = None) -> Sighting:
    """The summary of a whole recording."""
    seen = Sighting(config)
    for now, batches in calls:
        seen.take(now, batches)
    return seen


def _trusted(batch: Batch) -> int:
    """The best source of a look first: it fills the look, the others what it lacks."""
    ranks = [SOURCE_ORDER.index(f.source) for f in batch.frames if f.source in SOURCE_ORDER]
    return min(ranks, default=len(SOURCE_ORDER))
