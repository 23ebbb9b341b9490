"""What is usual for one engine: medians of its own healthy past, learned while it serves and nothing is wrong.

One sample every ten seconds, kept for two hours; a baseline answers from the third sample on. Samples taken while harm is
felt, while an incident is open, or while the engine is not serving are not learned, so that a long incident does not
become the usual.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

EVERY_S = 10.0
KEEP = 720
ENOUGH = 3


class Baseline:
    """Samples of named figures: (at, value). Figures are chosen by the pipeline (see pipeline.LEARNED)."""

    def __init__(self) -> None:
        self.samples: dict[str, deque[tuple[float, float]]] = {}
        self.ordered: dict[str, list[float]] = {}  # the values of the samples, least first
        self.trail: dict[str, deque[tuple[float, float]]] = {}
        self.learned_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether the next sample may be taken."""
        return now - self.learned_at >= EVERY_S

    def learn(self, now: float, figures: dict[str, float]) -> None:
        """Take one sample of each figure that is known."""
        self.learned_at = now
        for name, value in figures.items():
            if math.isnan(value):
                continue
            kept, ordered = self.samples.setdefault(name, deque()), self.ordered.setdefault(name, [])
            if len(kept) == KEEP:
                del ordered[bisect_left(ordered, kept.popleft()[1])]
            kept.append((now, value))
            insort(ordered, value)

    def usual(self, name: str, before: float = math.inf) -> float | None:
        """The median of the samples taken before `before`; None below three."""
        values = self.ordered.get(name, [])
        if values and self.samples[name][-1][0] >= before:
            values = sorted(v for at, v in self.samples[name] if at < before)
        if len(values) < ENOUGH:
            return None
        middle = len(values) // 2
        return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2

    def recent(self, name: str) -> list[tuple[float, float]]:
        """The samples of a figure, oldest first, those taken during harm included (kept apart from the usual)."""
        return list(self.trail.get(name, ()))

    def note(self, now: float, figures: dict[str, float]) -> None:
        """Keep a short trail of the figures whatever the state: for dating a shift, never for what is usual."""
        for name, value in figures.items():
            if not math.isnan(value):
                self.trail.setdefault(name, deque(maxlen=90)).append((now, value))
