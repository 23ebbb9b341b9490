"""Overload: more arrives than the engine can serve in any order, and nothing holds the excess back.

Mechanism. Arrivals exceed completions, the batch or the KV pool is full of requests of the usual kind, the queue grows
about as fast as the two rates differ, and each request's own service is as quick as ever.

Blind spots. Engines that count no arrivals are read as finished + running + waiting; of those that count no completions
either (llama.cpp) the queue against the batch speaks alone, with less confidence. A throughput that fell (throttling,
slow kernels) at the same arrivals looks alike; the evidence names which of the two moved.

Told apart from: traffic_surge (the arrival rate stepped up within the minute before), long_context_kv_pressure (few long
requests hold the pool), batch_thrashing and head_of_line_blocking (requests that would fit are held up), engine_hang.
"""

from __future__ import annotations

import math

import msgspec

from ..memory.view import Window
from ..model import Advice, Evidence, Finding
from ..questions.pressure import Pressure, pressure
from ..questions.ruled_out import not_hang, not_preemption_storm, not_throttling, not_traffic_surge
from . import Rule

UNCOUNTED = 0.65


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of §6: waiting exceeds two seconds of service and rises, for half a minute."""

    service_s: float = 2.0
    rises_for_s: float = 25.0
    batches: float = 2.0  # so many times the batch wait, where no completions are counted


def check(w: Window, p: Params) -> Finding | None:
    """Demand beyond capacity without a step of the arrival rate just before."""
    found = w.once(pressure)
    if found is None or found.surge is not None:
        return None
    if found.waiting_service_s < p.service_s or found.queued_for_s < p.rises_for_s:
        return None
    if math.isnan(found.completions_per_s):
        return _uncounted(w, found, p)
    return Finding(
        rule="overload",
        subject=w.subject,
        confidence=found.confidence,
        summary=(
            f"More arrives than can be served: {found.arrivals_per_s:.2g} requests/s against {found.completions_per_s:.2g}; "
            f"the {found.full_of} is full and {found.waiting:.0f} wait."
        ),
        onset_at=found.began_at,
        mechanism=f"{found.full_of}_full",
        evidence=evidence(w, found),
        ruled_out=(not_traffic_surge(w), not_hang(w), not_preemption_storm(w), not_throttling(w)),
    )


def _uncounted(w: Window, found: Pressure, p: Params) -> Finding | None:
    """The queue alone speaks: the engine says neither how many come nor how many it finishes."""
    running = w.level("req_running")
    if found.waiting < p.batches * running:
        return None
    return Finding(
        rule="overload",
        subject=w.subject,
        confidence=min(found.confidence, UNCOUNTED),
        summary=(
            f"The {found.full_of} is full with {running:.0f} and {found.waiting:.0f} wait, {found.slope_per_s:+.2g} a second; "
            "how many come and finish is not counted."
        ),
        onset_at=found.began_at,
        mechanism=f"{found.full_of}_full",
        evidence=(
            w.evidence("req_waiting", found.waiting, p.batches * running, ">=", 5),
            w.evidence("req_waiting slope (1/s)", found.slope_per_s, 0.0, ">", 30),
            w.evidence(f"{found.full_of} in use", found.fullness, 0.9, ">=", 30),
        ),
        ruled_out=(not_traffic_surge(w), not_hang(w), not_preemption_storm(w), not_throttling(w)),
    )


def evidence(w: Window, found: Pressure) -> tuple[Evidence, ...]:
    """The numbers that overload and traffic_surge share."""
    return (
        w.evidence("arrival_rate_per_second", found.arrivals_per_s, found.completions_per_s, ">", 60),
        w.evidence("req_waiting ÷ completions (seconds of service)", found.waiting_service_s, 2.0, ">=", 5),
        w.evidence("req_waiting slope (1/s)", found.slope_per_s, 0.0, ">", 30),
        w.evidence(f"{found.full_of} in use", found.fullness, 0.9, ">=", 30),
        w.evidence("waiting time with free room", found.fit_share, 0.2, "<=", 60),
        w.evidence("load factor", found.load_factor, 1.0, ">=", 120),
    )


RULE = Rule(
    stem="overload",
    family="demand",
    title="Overload",
    check=check,
    params=Params,
    needs=("req_waiting", "req_running", "req_finished_total"),
    opens_eyes="let the agent read the engine's page at 1 Hz, and tell it max_num_seqs where the engine does not",
    for_s=5,
    resolve_s=30,
    severity="page",
    action="shed",
    advice=(
        Advice(
            do="Shed or limit load at the gateway until the queue is shorter than two seconds of service.",
            knob="gateway: rate or concurrency, batch traffic first",
            applies="runtime",
            takes_s=30,
            costs="some requests get 429 instead of a late answer",
            verify="gpuwatch_queue_rate_per_second turns negative, TTFT P95 falls within a minute",
            undo="remove the limit once the queue is empty",
        ),
        Advice(
            do="Add replicas; they help as soon as they are warm.",
            knob="autoscaler: replicas",
            applies="runtime",
            takes_s=300,
            costs="GPUs; nothing until the model is loaded",
            verify="arrivals per replica fall below completions",
            undo="scale in after an hour of quiet",
        ),
        Advice(
            do="Lower max_tokens for batch clients, or move them to off-peak hours.",
            knob="gateway: max_tokens, priority of batch tenants",
            applies="runtime",
            takes_s=60,
            costs="shorter answers for batch work",
            verify="gpuwatch_completion_rate_per_second rises",
            undo="restore the limit",
        ),
    ),
    not_now=(
        "Do not restart: the queue returns at once, with a cold cache.",
        "Do not let clients retry without back-off: retries keep the overload alive after its cause is gone.",
    ),
    tell_apart=("traffic_surge", "long_context_kv_pressure", "batch_thrashing", "engine_hang", "gpu_throttling"),
)
