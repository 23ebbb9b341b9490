"""A window onto seconds that are written down: the shortest way to ask a rule or a question about a series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..catalog import CATALOG
from ..config import Slo
from ..memory.baseline import Baseline
from ..memory.history import History
from ..memory.view import Window
from ..model import Batch, Floats, Info, Subject
from .world import START, frame_of


def window(
    slo: Slo | None = None,
    usual: Mapping[str, float] | None = None,
    source: str = "steps",
    info: Mapping[str, str] | None = None,
    **signals: Sequence[float] | Floats,
) -> Window:
    """A window onto seconds that are written down: one value a second for each signal, the last one just over.

    Counters are given as increases per second. NaN is a second without a reading. `usual` are figures of a learned
    baseline (baseline.py), `info` what the engine says of itself. ValueError for series of different lengths.
    """
    seconds = {len(values) for values in signals.values()}
    if len(seconds) != 1:
        raise ValueError(f"one value a second each: got lengths {sorted(seconds)}")
    n = seconds.pop()
    subject, now = Subject(engine="shim"), START + n
    history, baseline = History(subject), Baseline()
    at = np.asarray(START + 0.5 + np.arange(n), np.float64)
    columns = {name: _column(name, np.asarray(v, float)) for name, v in signals.items()}
    labels = (Info(subject, START, dict(info)),) if info else ()
    frame = frame_of(subject, source, at, columns)
    history.ingest(Batch(source, "steps", subject, START, info=labels))  # watched since then
    history.ingest(Batch(source, "steps", subject, now, frames=(frame,)))
    history.advance(now)
    for name, value in (usual or {}).items():
        for k in range(3):
            baseline.learn(START - 100 + k, {name: value})
    return Window(now, history, (), baseline, slo or Slo())


def _column(name: str, values: Floats) -> Floats:
    if CATALOG[name].kind != "counter":
        return values
    return np.where(np.isnan(values), math.nan, np.cumsum(np.nan_to_num(values)))
