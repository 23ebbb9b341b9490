"""Clues: the verdict on whatever short evidence there is, where the rules, which need a recording, could not name it.

A log excerpt, one page, two pages, a device page: everything is summed up (sighting.py), each class says what it would make of
that (classes/), the candidates are weighed (weigh.py), and what is left joins the pipeline's verdict (merge.py). Nothing here
looks at text: sources have turned messages into kinds and numbers before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Config
from ..model import Batch, Verdict
from .limits import what_it_cannot_tell
from .merge import merged
from .sighting import gather
from .weigh import candidates, weighed

Calls = Sequence[tuple[float, tuple[Batch, ...]]]

__all__ = ["cannot_tell", "judge"]


def judge(calls: Calls, verdict: Verdict, config: Config | None = None) -> Verdict:
    """The verdict with what short evidence adds: incidents, symptoms, evidence. Deterministic; never raises on bad numbers.

    `calls`: what the pipeline was fed, in the order of time; `verdict`: what it said.
    """
    seen = gather(calls, config)
    return merged(verdict, weighed(candidates(seen), seen), seen)


def cannot_tell(calls: Calls) -> list[str]:
    """What this material cannot tell, one sentence each, for a person to read beside the verdict."""
    return what_it_cannot_tell(gather(calls))
