"""Harm that no rule explains: said as such, with the family where the evidence half decides, and two candidates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..memory.view import Window
from ..model import Advice, Finding, Missing
from ..questions.latency import latency
from ..questions.queue import queue
from ..questions.rhythm import rhythm
from ..rules import Rule


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set."""


def unknown_finding(w: Window, candidates: Sequence[Finding], why: str, since: float) -> Finding:
    """The finding behind an `unknown` incident: what is felt, where latency goes, what comes nearest."""
    r = w.maybe(rhythm)
    recurrent = r is not None and r.cycles >= 1 and r.current
    near = sorted(candidates, key=lambda f: (-f.confidence, f.rule))[:2]
    stage, q = w.once(latency), w.once(queue)
    names = " or ".join(f.rule for f in near)
    what = "It recurs; the mechanism is not decided yet" if recurrent else "The evidence does not decide on a mechanism"
    return Finding(
        rule="unknown",
        subject=w.subject,
        confidence=0.5,
        summary=f"{why or 'Requests are late'}. {what}" + (f"; nearest: {names}." if names else "."),
        onset_at=since,
        mechanism="recurrent" if recurrent else "",
        evidence=(
            w.evidence(f"{stage.stage} share of TTFT", stage.ttft_share, stage.baseline_share, "was", 60),
            w.evidence("req_waiting", q.waiting, None, "", 5),
            w.evidence("req_waiting slope (1/s)", q.rate_per_s, None, "", 30),
            w.evidence("kv_usage_ratio", _level(w, "kv_usage_ratio"), None, "", 1),
        ),
    )


def _level(w: Window, signal: str) -> float | None:
    try:
        return w.level(signal)
    except Missing:
        return None


def _never(_w: Window, _p: Params) -> None:
    return None


UNKNOWN = Rule(
    stem="unknown",
    family="unknown",
    title="Unknown",
    check=_never,
    params=Params,
    needs=(),
    opens_eyes="`gpuwatch doctor` names the source that would decide",
    for_s=0,
    resolve_s=30,
    severity="page",
    action="observe",
    advice=(
        Advice(
            do="Add the source that is missing; the blind list names it.",
            knob="gpuwatch doctor",
            applies="runtime",
            takes_s=60,
            costs="nothing",
            verify="the rule is no longer blind",
        ),
    ),
    not_now=("Do not restart on a guess: it destroys the evidence.",),
)
"""The rule that stands for "no rule"; not in the rules folder, because nothing checks for it."""
