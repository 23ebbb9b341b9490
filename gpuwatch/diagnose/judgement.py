"""Runs the pipeline over the calls of one incident's material and has the short evidence weighed.

What was blind is counted over the whole recording: the last second of it may be the one in which the engine is gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ..config import Config
from ..model import Batch, Blind, Verdict
from ..pipeline import Pipeline
from ..recording.quantize import quantized
from .material import Call

Progress = Callable[[float], None]
KEPT_CALLS = 4 * 3600
MAX_SUBJECTS = 64


class Judged(msgspec.Struct, frozen=True):
    """The verdict, what one look or this material cannot tell, and what was blind for most of the time."""

    verdict: Verdict
    cannot_tell: tuple[str, ...] = ()
    blind: tuple[Blind, ...] = ()
    seconds: int = 0


def judge_calls(
    calls: Iterable[Call], config: Config, progress: Progress = lambda _: None, expected: int = 0
) -> Judged:
    """Step through the calls as the live agent would. `expected`: how many there will be, for the progress."""
    pipeline = Pipeline(config)
    kept: deque[Call] = deque(maxlen=KEPT_CALLS)
    dark: Counter[tuple[str, str, str]] = Counter()
    told: dict[tuple[str, str, str], Blind] = {}
    seconds = 0
    for now, batches in calls:
        exact = quantized(now, batches)
        tick = pipeline.step(*exact)
        kept.append(exact)
        seconds += 1
        for blind in tick.blind:
            key = (blind.rule, blind.subject, _signal(blind))
            dark[key] += 1
            told.setdefault(key, blind)
        if expected:
            progress(min(seconds / expected, 1.0))
    verdict = pipeline.verdict()
    verdict, cannot = weigh(list(kept), verdict, config)
    most = [told[key] for key, n in dark.items() if 2 * n > seconds]
    return Judged(verdict, cannot, tuple(sorted(most, key=lambda b: (b.rule, b.subject))), seconds)


def weigh(
    calls: Sequence[tuple[float, Sequence[Batch]]], verdict: Verdict, config: Config
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict with what short evidence says, and what this material cannot tell."""
    from .. import clues

    given = [(now, tuple(batches)) for now, batches in calls]
    return clues.judge(given, verdict, config), tuple(clues.cannot_tell(given))


def _signal(blind: Blind) -> str:
    return blind.missing[0].partition(":")[0] if blind.missing else ""
