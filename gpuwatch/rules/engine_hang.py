"""Engine hang: requests are in the engine and nothing moves: no token, no step, while the page may well answer.

Mechanism. A collective that one rank never joins, a dead worker, a kernel that does not return: the scheduler's step does
not end. Gauges keep their last good values and health checks stay green; only counters that must move tell.

Blind spots. One long prefill looks the same on a page: no tokens, frozen counters. The ring tells them apart (planned
prefill tokens of the step in progress, and what such tokens cost so far), the device does too (a prefill keeps it busy).
With neither, this is a suspicion until a minute, or five times the longest step, has passed.

Told apart from: a long prefill, overload (tokens flow), stale telemetry (the device works on), an idle engine.
"""

from __future__ import annotations

import math

import msgspec

from ..memory.view import Window
from ..model import Advice, Finding, RuledOut
from ..questions.progress import device_witness, stall
from ..questions.ruled_out import not_throttling
from . import Rule


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Suspicion after ten seconds, certainty by time or by a second witness."""

    suspect_s: float = 10.0
    certain_s: float = 60.0
    longest_steps: float = 5.0
    predicted_steps: float = 3.0


def check(w: Window, p: Params) -> Finding | None:
    """Nothing has moved for longer than the work in progress can explain."""
    s = w.once(stall)
    if s.for_s < p.suspect_s or s.inside <= 0:
        return None
    expected = p.predicted_steps * s.predicted_s if not math.isnan(s.predicted_s) else 0.0
    witness = device_witness(w)
    explained = s.for_s < expected
    if explained and witness.says != "idle":
        return None  # a long prefill, and not yet longer than such a prefill may take
    longest = p.longest_steps * s.longest_s if not math.isnan(s.longest_s) else 0.0
    certain_s = max(p.certain_s, longest, expected)
    proof = _proof(w, s.for_s, certain_s, witness.says)
    page_alone = witness.says == "busy" and not w.open_step  # then it may well be a long prefill
    sure = 0.95 if proof else 0.5 if page_alone else 0.6
    return Finding(
        rule="engine_hang",
        subject=w.subject,
        confidence=sure,
        summary=(
            f"Nothing has moved for {s.for_s:.0f} s while {s.inside:.0f} requests are in the engine"
            + (f": {proof}." if proof else "; a long prefill is not ruled out yet.")
        ),
        onset_at=w.now - s.for_s,
        mechanism="hung_step" if w.open_step else "no_progress",
        proof=proof,
        evidence=(
            w.evidence("seconds without a token or a step", s.for_s, p.suspect_s, ">=", s.for_s),
            w.evidence("requests in the engine", s.inside, 0.0, ">", 1),
            w.evidence("step predicted to take (seconds)", None if math.isnan(s.predicted_s) else s.predicted_s),
            w.evidence("longest step so far (seconds)", None if math.isnan(s.longest_s) else s.longest_s),
            w.evidence("gpu_dram_active_ratio", None if math.isnan(witness.dram) else witness.dram, 0.05, "<", 5),
        ),
        ruled_out=(_not_prefill(w, expected), not_throttling(w)),
    )


def _proof(w: Window, for_s: float, certain_s: float, device: str) -> str:
    if device == "idle":
        return "the device does no work (a second witness beside the counters)"
    if for_s >= certain_s:
        return f"longer than any step may take here ({certain_s:.0f} s)"
    return ""


def _not_prefill(w: Window, expected: float) -> RuledOut:
    step = w.open_step
    if step is None:
        return RuledOut("long prefill", "blind: no step ring shows what the engine is computing")
    return RuledOut(
        "long prefill",
        f"the step in progress has {step.prefill_tokens:.0f} prefill tokens; three times its usual time is {expected:.1f} s",
        (w.evidence("prefill tokens of the step in progress", step.prefill_tokens),),
    )


RULE = Rule(
    stem="engine_hang",
    family="engine_down",
    title="Engine hang",
    check=check,
    params=Params,
    needs=("req_running", "generated_tokens_total"),
    opens_eyes="let the agent read the engine's step ring (GPUWATCH_RING_DIR) or SM and DRAM activity of its GPU",
    for_s=0,
    resolve_s=10,
    severity="page",
    action="restart",
    advice=(
        Advice(
            do="Take the replica out of rotation, so that clients stop waiting for it.",
            knob="router or Service: remove this endpoint",
            applies="runtime",
            takes_s=15,
            costs="load on the others; requests inside are lost anyway",
            verify="no new requests arrive here",
            undo="put the endpoint back once it serves",
        ),
        Advice(
            do="Save the evidence before the restart: stacks of the engine's processes and the step ring.",
            knob="py-spy dump --nonblocking --pid PID; copy the ring file",
            applies="runtime",
            takes_s=30,
            costs="nothing: --nonblocking stops no process",
            verify="the dump names the frame that waits",
        ),
        Advice(
            do="Restart the engine.",
            knob="delete the pod or restart the service",
            applies="restart",
            takes_s=180,
            costs="all requests inside, and the prefix cache",
            verify="gpuwatch_generated_tokens_total moves, lifecycle is serving",
        ),
    ),
    not_now=(
        "Do not trust a green health check: it answers from another process than the one that hangs.",
        "Do not scale out first: new replicas help new requests, those inside hang on.",
    ),
    explains=("overload", "head_of_line_blocking", "traffic_surge", "long_context_kv_pressure"),
    tell_apart=("overload", "stale_telemetry", "head_of_line_blocking", "start_failure"),
)
