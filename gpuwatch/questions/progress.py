"""Does the engine make progress? For how long has no token come, and is a long prefill the reason?"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..memory.tiers import GREATEST
from ..memory.view import Window
from ..model import Missing
from ..stats import quantile_of_known

WORK = ("steps_total", "generated_tokens_total", "prompt_tokens_total")


class Stall(NamedTuple):
    """`for_s`: how long neither token nor step has come while requests are in the engine, 0 where they flow.

    `predicted_s`: how long the step in progress should take, from what earlier prefill tokens cost (NaN without a ring).
    `longest_s`: the longest step so far in 15 minutes. `prefill_tokens`: planned in the step in progress.
    """

    for_s: float
    inside: float
    predicted_s: float
    longest_s: float
    prefill_tokens: float


def stall(w: Window) -> Stall:
    """From the step in progress where a ring shows it, else from counters that must move while requests run."""
    if w.history.is_gone():
        raise Missing("engine", "its page refuses: what is gone does not hang")
    step = w.open_step
    if step is not None:
        inside = step.running + step.waiting
        known = _learned(w)
        predicted = known.seconds_per_prefill_token * step.prefill_tokens + known.usual_step_s
        for_s = max(0.0, w.now - step.begun_at) if inside > 0 else 0.0
        return Stall(for_s, inside, predicted, known.longest_s, step.prefill_tokens)
    inside = w.level("req_running") + w.level("req_waiting")
    moving = [_quiet_s(w, name) for name in WORK[:2] if w.moves(name)]
    if not moving:
        raise Missing("generated_tokens_total", "nothing that must move is shown")
    quiet_s = min(moving)
    cadence = max((t.cadence_s for t in w.history.tiers.values() if not math.isnan(t.cadence_s)), default=1.0)
    for_s = quiet_s if inside > 0 and quiet_s > 2 * cadence else 0.0
    return Stall(for_s, inside, math.nan, _learned(w).longest_s, math.nan)


def _quiet_s(w: Window, counter: str) -> float:
    """Since when it stands still while somebody looked: where nobody did, silence is none of the engine's."""
    return w.age(counter) - max(0.0, w.now - w.history.asked_at(w.source(counter)))


class _Learned(NamedTuple):
    seconds_per_prefill_token: float
    usual_step_s: float
    longest_s: float


def _learned(w: Window) -> _Learned:
    """What steps cost so far: seconds per prefill token of the slowest tenth of prefill-heavy seconds, and the longest.

    Asked of the past, because nothing is fresh while a step does not end. The quadratic part of attention makes late
    chunks of a long prompt dearer than their tokens say; the rule's factor of three covers it.
    """
    try:
        longest = w.past("step_seconds", 900.0, GREATEST)
        usual = w.past("step_seconds", 900.0)
        prefill = w.past("step_prefill_tokens", 900.0, GREATEST)
    except Missing:
        return _Learned(0.0, 0.0, math.nan)
    heavy = prefill >= max(256.0, 0.5 * float(np.fmax.reduce(prefill)))
    rate = quantile_of_known(longest[heavy] / prefill[heavy], 0.9) if heavy.any() else 0.0
    return _Learned(rate, quantile_of_known(usual, 0.5), float(np.fmax.reduce(longest)))


class Witness(NamedTuple):
    """What the device says while no token comes: "idle", "busy", or "blind"."""

    says: str
    dram: float
    tensor: float
    sm: float


def device_witness(w: Window) -> Witness:
    """Idle or spinning (no DRAM and no tensor activity) proves a hang; a busy device speaks for a long prefill."""
    try:
        dram, tensor = w.gpu_mean("gpu_dram_active_ratio", 5.0), w.gpu_mean("gpu_tensor_active_ratio", 5.0)
    except Missing:
        return Witness("blind", math.nan, math.nan, math.nan)
    try:
        sm = w.gpu_mean("gpu_sm_active_ratio", 5.0)
    except Missing:
        sm = math.nan
    return Witness("idle" if dram < 0.05 and tensor < 0.05 else "busy", dram, tensor, sm)
