"""Question 2: is the running set steady, recurrent or periodic?

Recurrent means drain–refill cycles while requests wait: the running set falls from at least 0.7 to at most 0.45 of its
trailing 60 s P90 and comes back; where requests are preempted in each cycle, a fall from 0.9 to 0.75 counts. Periodic is
said only where the autocorrelation is regular (Thornhill r > 1) with a peak above 0.5: random healthy load has
autocorrelation peaks too, but no cycles while requests wait.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..memory.view import Window
from ..model import Floats, Missing, RhythmState
from ..stats import drain_refill_cycles, trailing_quantile
from ..stats import period as regular_period

SPAN_S = 300.0
SHALLOW = (0.9, 0.75)
"""High and low mark of cycles in which requests are preempted: the batch loses its youngest, not everybody."""
PREEMPTIONS_A_CYCLE = 5
TOGETHER_S = 75.0
"""Cycles further apart than this belong to different episodes."""


class Rhythm(NamedTuple):
    """The newest episode of drain–refill cycles. Times are unix seconds; `cycles` counts completed ones.

    `lost_slots_ratio`: share of the full batch that stood empty while requests waited, since the onset. `draining`: a
    drain is going on now. `current`: the episode is not over.
    """

    cycles: int
    period_s: float
    period_cv: float
    swing_ratio: float
    onset_at: float
    lost_slots_ratio: float
    full_batch: float
    draining: bool
    current: bool


def rhythm(w: Window) -> Rhythm:
    """The newest episode in the last five minutes; `cycles` is 0 where there is none."""
    running = w.series("req_running", SPAN_S, thin=0.05)
    waiting = w.series("req_waiting", SPAN_S, thin=0.05)
    reference = trailing_quantile(running, 60, 0.9)
    found, open_since = drain_refill_cycles(running, waiting, reference)
    shallow, shallow_open = drain_refill_cycles(running, waiting, reference, *SHALLOW)
    if len(shallow) > len(found) and _preempts(w, len(running) - shallow[0].fell) >= PREEMPTIONS_A_CYCLE * len(shallow):
        found, open_since = shallow, shallow_open
    start_at = math.floor(w.now) - len(running)
    episode = found[-1:]
    for cycle in reversed(found[:-1]):
        if episode[0].fell - cycle.refilled > TOGETHER_S:
            break
        episode.insert(0, cycle)
    draining = open_since >= 0
    if draining and episode and open_since - episode[-1].refilled > TOGETHER_S:
        episode = []
    if not episode:
        onset = start_at + open_since if draining else math.nan
        swing = _swing(running[open_since:], reference) if draining else 0.0
        return Rhythm(0, math.nan, math.nan, swing, onset, 0.0, float(reference[-1]), draining, draining)
    troughs = np.array([c.trough for c in episode], float)
    gaps = np.diff(troughs)
    period_s = float(np.median(gaps)) if len(gaps) else float(episode[0].refilled - episode[0].fell)
    spread = float(gaps.std() / gaps.mean()) if len(gaps) > 1 else math.nan
    first = episode[0].fell
    since, queued = running[first:], waiting[first:] > 0
    full = float(np.nanmax(reference[first:]))
    lost = float(1 - np.nanmean(since[queued]) / full) if queued.any() and full > 0 else 0.0
    quiet_s = len(running) - episode[-1].refilled
    current = draining or quiet_s <= max(30.0, 2 * period_s)
    swing = float(np.median([c.swing_ratio for c in episode]))
    return Rhythm(len(episode), period_s, spread, swing, start_at + first, max(0.0, lost), full, draining, current)


def _preempts(w: Window, span_s: float) -> float:
    """Preemptions over the span: a cycle of preemption loses a part of the batch only, and is counted as such."""
    try:
        return w.rate("req_preempted_total", span_s) * span_s
    except Missing:
        return 0.0


def state(w: Window) -> RhythmState:
    """The answer for the state line."""
    try:
        r = w.once(rhythm)
    except Missing:
        return RhythmState("unknown")
    if r.cycles == 0 or not r.current:
        return RhythmState("steady")
    cv = None if math.isnan(r.period_cv) else r.period_cv
    if r.cycles < 2:
        return RhythmState("steady", r.cycles, None, None, r.swing_ratio)
    kind = "periodic" if w.once(is_periodic) else "recurrent"
    return RhythmState(kind, r.cycles, r.period_s, cv, r.swing_ratio)  # type: ignore[arg-type]


def is_periodic(w: Window) -> bool:
    """Whether the running set swings with a regular period."""
    r = w.once(rhythm)
    if r.cycles < 4:
        return False
    span = min(SPAN_S, max(60.0, w.now - r.onset_at))
    found = regular_period(w.series("req_running", span, thin=0.05))
    return found is not None and found.regularity > 1 and found.peak > 0.5


def _swing(drained: Floats, reference: Floats) -> float:
    full = float(np.nanmax(reference)) if not np.isnan(reference).all() else 0.0
    return float(1 - np.nanmin(drained) / full) if full > 0 and not np.isnan(drained).all() else 0.0
