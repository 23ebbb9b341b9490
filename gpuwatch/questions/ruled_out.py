"""Why it is not a neighbour, each with the number that says so, or "blind" where nothing can tell."""

from __future__ import annotations

import math

from ..memory.view import Window
from ..model import Missing, RuledOut
from .demand import flow, surge
from .gpu import THROTTLED_RATIO, throttled_ratio
from .progress import stall

STORM_PER_FINISHED = 0.5
HANG_S = 10.0


def not_traffic_surge(w: Window) -> RuledOut:
    """The arrival rate has no step of 1.5 × or more in five minutes."""
    try:
        rise = w.once(surge)
        now = w.once(flow).arrivals_per_s
    except Missing as e:
        return _blind("traffic_surge", e)
    usual = w.baseline.usual("arrivals_per_s")
    if rise is not None:
        return RuledOut("traffic_surge", f"not ruled out: arrivals rose {rise.before:.2g} → {rise.after:.2g}/s")
    was = f", usually {usual:.2g}/s" if usual is not None else ""
    return RuledOut(
        "traffic_surge",
        f"the arrival rate is flat: {now:.2g}/s{was}",
        (w.evidence("arrival_rate_per_second", now, 1.5 * usual if usual else None, "<", 60),),
    )


def not_throttling(w: Window) -> RuledOut:
    """No device spent more than 5 % of the last minute under a hardware or thermal slowdown."""
    try:
        ratio = w.once(throttled_ratio)
    except Missing as e:
        return _blind("gpu_throttling", e)
    verdict = "no clock limit" if ratio <= THROTTLED_RATIO else "not ruled out: the device is slowed down"
    return RuledOut("gpu_throttling", verdict, (w.evidence("gpu_throttled_ratio", ratio, THROTTLED_RATIO, "<=", 60),))


def not_hang(w: Window) -> RuledOut:
    """Tokens flow."""
    try:
        rate = w.rate("generated_tokens_total", 30)
        quiet = w.once(stall).for_s
    except Missing as e:
        return _blind("engine_hang", e)
    if quiet >= HANG_S:
        return RuledOut("engine_hang", f"not ruled out: no step has ended for {quiet:.0f} s")
    return RuledOut(
        "engine_hang", f"tokens flow: {rate:.0f}/s", (w.evidence("generated_tokens_total", rate, 0.0, ">", 30),)
    )


def preemptions_per_finished(w: Window) -> float:
    """Preemptions per finished request over two minutes."""
    done = w.rate("req_finished_total", 120)
    lost = w.rate("req_preempted_total", 120)
    return lost / done if done > 0 else (math.inf if lost > 0 else 0.0)


def recompute_share(w: Window) -> float:
    """Recomputed tokens ÷ all tokens computed (prompt, output, recomputed) over two minutes."""
    again = w.rate("recomputed_tokens_total", 120)
    fresh = w.rate("prompt_tokens_total", 120) + w.rate("generated_tokens_total", 120)
    return again / (again + fresh) if again + fresh > 0 else 0.0


def not_preemption_storm(w: Window) -> RuledOut:
    """Few preemptions for the requests that finish: up to 8 % of requests, once each, is healthy."""
    try:
        per = w.once(preemptions_per_finished)
    except Missing as e:
        return _blind("preemption_storm", e)
    share = w.maybe(recompute_share)
    evidence = (w.evidence("req_preempted_total ÷ req_finished_total", per, STORM_PER_FINISHED, "<", 120),)
    if per >= STORM_PER_FINISHED:
        return RuledOut(
            "preemption_storm", f"nested: {per:.2g} preemptions per finished request follow the cycle", evidence
        )
    known = "" if share is None else f", {share:.0%} of the tokens computed again"
    return RuledOut("preemption_storm", f"{per:.2g} preemptions per finished request{known}", evidence)


def _blind(rule: str, missing: Missing) -> RuledOut:
    return RuledOut(rule, f"blind: {missing.signal}: {missing.why}")
