"""Traffic surge: the arrival rate stepped up, and the queue follows from that alone.

Mechanism. As in overload, but within the minute before the queue began the arrival rate rose to at least 1.5 × what it
was, with requests of the same kind: what moved is the traffic, not the service.

Blind spots. A retry storm steps the arrival rate up too; aborts and duplicates before it would tell, and are not judged
here yet.

Told apart from: overload (no step of the arrival rate), length_shift (requests changed, not their number),
batch_thrashing (cycles at flat arrivals).
"""

from __future__ import annotations

import math

import msgspec

from ..memory.view import Window
from ..model import Advice, Finding, Missing, RuledOut
from ..questions.moved import length_shift
from ..questions.pressure import pressure
from ..questions.ruled_out import not_hang, not_preemption_storm, not_throttling
from . import Rule
from .overload import evidence


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of §6."""

    ratio: float = 1.5  # arrivals after ÷ before
    service_s: float = 1.0  # waiting exceeds so many seconds of service
    rises_for_s: float = 8.0


def check(w: Window, p: Params) -> Finding | None:
    """Demand beyond capacity after a step of the arrival rate."""
    found = w.once(pressure)
    if found is not None and math.isnan(found.completions_per_s):
        raise Missing("req_finished_total", "no source has it")
    if found is None or found.surge is None or found.surge_at is None:
        return None
    rise = found.surge
    if (
        rise.after < p.ratio * rise.before
        or found.waiting_service_s < p.service_s
        or found.queued_for_s < p.rises_for_s
    ):
        return None
    return Finding(
        rule="traffic_surge",
        subject=w.subject,
        confidence=found.confidence,
        summary=(
            f"The arrival rate rose from {rise.before:.2g} to {rise.after:.2g} requests/s, beyond the "
            f"{found.completions_per_s:.2g}/s that are served; {found.waiting:.0f} wait."
        ),
        onset_at=max(found.surge_at, found.began_at - 60),
        mechanism=f"{found.full_of}_full",
        evidence=(
            w.evidence("arrival_rate_per_second", rise.after, p.ratio * rise.before, ">=", 300),
            *evidence(w, found),
        ),
        ruled_out=(_not_length_shift(w), not_hang(w), not_preemption_storm(w), not_throttling(w)),
    )


def _not_length_shift(w: Window) -> RuledOut:
    shift = w.maybe(length_shift)
    if shift is None:
        return RuledOut("length_shift", "prompt lengths did not change")
    return RuledOut("length_shift", "not ruled out: prompt lengths changed too")


RULE = Rule(
    stem="traffic_surge",
    family="demand",
    title="Traffic surge",
    check=check,
    params=Params,
    needs=("req_waiting", "req_running", "req_finished_total"),
    opens_eyes="let the agent read the engine's page at 1 Hz: arrivals are counted there",
    for_s=3,
    resolve_s=30,
    severity="page",
    action="shed",
    advice=(
        Advice(
            do="Find who sends more (tenant, release, retry) and limit that client.",
            knob="gateway: rate limit per client",
            applies="runtime",
            takes_s=60,
            costs="that client is slowed down",
            verify="gpuwatch_arrival_rate_per_second returns to its former level, the queue drains",
            undo="remove the limit",
        ),
        Advice(
            do="Scale out if the traffic is wanted and lasts longer than a replica takes to warm up.",
            knob="autoscaler: replicas",
            applies="runtime",
            takes_s=300,
            costs="GPUs; nothing until the model is loaded",
            verify="arrivals per replica fall below completions",
            undo="scale in after the surge",
        ),
    ),
    not_now=(
        "Do not restart or roll back the engine: it serves as quickly as before.",
        "Do not retune the engine under a surge: what moved is the traffic.",
    ),
    explains=("overload",),
    tell_apart=("overload", "length_shift", "batch_thrashing", "retry_storm"),
)
