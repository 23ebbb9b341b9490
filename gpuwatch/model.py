"""The types that flow through gpuwatch: Batch → Window → Finding → Incident → Transition. Imports nothing of ours.

Times are unix seconds, values are in base units (seconds, bytes, hertz, watts, tokens), ratios are 0–1 and NaN means
"not known". Everything is frozen: a thing that has been said is not changed, a newer one is said.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Family = Literal[
    "kv_admission", "demand", "engine_down", "compute", "device", "frontend_host", "fleet", "telemetry", "unknown"
]
Severity = Literal["page", "ticket", "info"]
Lifecycle = Literal["loading", "warming", "serving", "draining", "sleeping", "maintenance", "gone", "unknown"]
ActionKind = Literal[
    "none", "observe", "limit_client", "reroute", "shed", "scale", "rollback", "restart", "drain_replica",
    "cordon_node", "redeploy_tuned", "fix_telemetry",
]  # fmt: skip

STAGES = (
    "gateway", "receive", "preprocess", "queue", "prefill", "transfer", "decode", "requeue", "postprocess", "client",
    "request",
)  # fmt: skip
"""Stages of a request, in the order of its life; `request` is the whole. A span's stage code is an index into this."""

OUTCOMES = ("", "stop", "length", "abort", "error", "rejected")
"""How a request ended; a span's outcome code is an index into this."""

LIVE_STAGES = {1: "queue", 2: "prefill", 3: "decode", 4: "requeue", 6: "transfer"}
"""Stage codes of the live request table (docs/ring.md)."""


class Missing(Exception):  # noqa: N818  (an answer, not an error)
    """A question that the data cannot answer: signal absent, too few or too old points. Marks a rule blind."""

    def __init__(self, signal: str, why: str) -> None:
        self.signal = signal
        self.why = why
        super().__init__(f"{signal}: {why}")


class Subject(msgspec.Struct, frozen=True, order=True):
    """What is sick, by stable key only. Exactly one of engine (with rank), gpu or host is set.

    Model, version and pid are attributes and live in Info; a restart is a new epoch of the same subject.
    """

    engine: str = ""
    rank: int = 0
    gpu: str = ""
    host: str = ""

    @property
    def key(self) -> str:
        """A short stable name: `engine/shim/0`, `gpu/GPU-…`, `host/node7`."""
        if self.gpu:
            return f"gpu/{self.gpu}"
        if self.host:
            return f"host/{self.host}"
        return f"engine/{self.engine}/{self.rank}"


class Frame(msgspec.Struct, frozen=True, eq=False):
    """Readings of one subject by one source: `values[i, j]` is signal `names[j]` at time `at[i]`. NaN: not known.

    One poll of a page is a frame with one row; a block of scheduler steps is a frame with many. Names are the
    catalogue's; rows are in the order of `at`.
    """

    subject: Subject
    source: str
    names: tuple[str, ...]
    at: Floats
    values: Floats


class Histogram(msgspec.Struct, frozen=True):
    """A histogram as its page shows it: cumulative since the engine's start. `bounds` excludes +Inf.

    `cumulative[i]` counts observations ≤ `bounds[i]`; `count` counts all. Windows keep differences and refuse
    quantiles below the first bound.
    """

    subject: Subject
    source: str
    name: str
    at: float
    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float
    count: float


class Spans(msgspec.Struct, frozen=True, eq=False):
    """Finished stage spans of one engine, as columns of equal length.

    `request` is a salted hash (uint64), `stage` an index into STAGES, `outcome` one into OUTCOMES (of the request;
    0 where the span does not say). Token columns are NaN where a span does not say.
    """

    subject: Subject
    source: str
    request: NDArray[np.uint64]
    stage: NDArray[np.uint8]
    start: Floats
    end: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    outcome: NDArray[np.uint8]


class LiveRequests(msgspec.Struct, frozen=True, eq=False):
    """The requests in flight at one time, as columns: the head of the queue and the largest KV holders, not all.

    `stage` holds codes of LIVE_STAGES. Source: docs/ring.md, table *request*.
    """

    subject: Subject
    at: float
    request: NDArray[np.uint64]
    arrived_at: Floats
    stage: Floats
    prompt_tokens: Floats
    max_tokens: Floats
    generated_tokens: Floats
    blocks: Floats
    preemptions: Floats


class OpenStep(msgspec.Struct, frozen=True):
    """A scheduler step that has begun and not ended at `at`: what tells a hang from a long prefill."""

    subject: Subject
    at: float
    begun_at: float
    prefill_tokens: float
    decode_tokens: float
    running: float
    waiting: float


class Event(msgspec.Struct, frozen=True):
    """Something that happened: restart, ambiguous, version, arguments, change, maintenance, clock, journal_cut, oom_kill.

    Of devices: xid (code), gpu_event (kind, number), gpu_lost, gpu_returned; of their driver: nvml_lost, nvml_returned.
    """

    subject: Subject
    at: float
    what: str
    detail: dict[str, str] = {}


class Info(msgspec.Struct, frozen=True):
    """What a subject says of itself: version, model, limits (max_num_seqs, kv_capacity_tokens, …), as strings."""

    subject: Subject
    at: float
    labels: dict[str, str]


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One poll of one source and what it brought, its failure included. A failed poll is data.

    `role` says what was asked: engine, about, steps, spans, gpu, host, changes, capture. `took_s` is how long it took.
    """

    source: str
    role: str
    subject: Subject
    received_at: float
    took_s: float = 0.0
    error: str | None = None
    frames: tuple[Frame, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    spans: tuple[Spans, ...] = ()
    requests: tuple[LiveRequests, ...] = ()
    open_steps: tuple[OpenStep, ...] = ()
    events: tuple[Event, ...] = ()
    info: tuple[Info, ...] = ()
    dropped: int = 0  # items that were cut or unreadable in this poll


class Evidence(msgspec.Struct, frozen=True):
    """One number that a verdict rests on: `observed op limit`, over `window_s`, as `source` told it."""

    signal: str
    observed: float | str | None
    limit: float | str | None = None
    op: str = ""
    window_s: float = 0.0
    source: str = ""


class RuledOut(msgspec.Struct, frozen=True):
    """A neighbour that this is not, and the number that says so. `because` says "blind: …" where nothing can tell."""

    rule: str
    because: str
    evidence: tuple[Evidence, ...] = ()


class Alternative(msgspec.Struct, frozen=True):
    """Another class that the evidence also fits, less well."""

    rule: str
    confidence: float


class Trigger(msgspec.Struct, frozen=True):
    """What set the mechanism off: traffic_surge, length_shift or change, when, and by how much."""

    kind: str
    at: float
    evidence: tuple[Evidence, ...] = ()


class Culprit(msgspec.Struct, frozen=True):
    """Who holds or blocks: `kind` is request, tenant, rank, gpu or pid; `share` of what is held, 0–1."""

    kind: str
    id: str
    share: float
    detail: str = ""


class Advice(msgspec.Struct, frozen=True):
    """One thing to do: the knob by its name, when it applies, how long it takes, its price and its proof.

    `mechanism`: only for this mechanism of the class; empty for all.
    """

    do: str
    knob: str = ""
    applies: Literal["runtime", "restart", "redeploy"] = "runtime"
    takes_s: float = 0.0
    costs: str = ""
    verify: str = ""
    undo: str = ""
    mechanism: str = ""


class Change(msgspec.Struct, frozen=True):
    """A change near the onset. `blamed` only where it is the trigger."""

    what: str
    at: float
    blamed: bool = False


class Impact(msgspec.Struct, frozen=True):
    """What users feel. Pairs are [before, now]; None where it is not known."""

    objective: str
    good_ratio: float | None = None
    before_ratio: float | None = None
    late_requests: float | None = None
    ttft_p95_s: tuple[float | None, float | None] = (None, None)
    e2e_p95_s: tuple[float | None, float | None] = (None, None)
    breached: bool = False
    breach_in_s: float | None = None


class Symptom(msgspec.Struct, frozen=True):
    """Another class whose finding this incident explains: nested, not paged."""

    rule: str
    onset_at: float
    summary: str


class Finding(msgspec.Struct, frozen=True):
    """What one rule says of one subject at one tick."""

    rule: str
    subject: Subject
    confidence: float
    summary: str
    onset_at: float
    mechanism: str = ""
    evidence: tuple[Evidence, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    trigger: Trigger | None = None
    proof: str = ""  # an independent second witness, where a drastic action needs one


class Incident(msgspec.Struct, frozen=True):
    """A mechanism plus harm, from onset to end: the unit of the verdict (docs/verdict.md)."""

    id: str
    rule: str
    family: Family
    severity: Severity
    confidence: float
    subject: dict[str, Any]  # engine, rank, gpu, model
    scope: dict[str, str]  # cluster, pool, team
    status: Literal["open", "resolved"]
    onset_at: float
    detected_at: float
    resolved_at: float | None
    summary: str
    mechanism: str
    trigger: Trigger | None
    impact: Impact
    evidence: tuple[Evidence, ...]
    ruled_out: tuple[RuledOut, ...]
    alternatives: tuple[Alternative, ...]
    culprits: tuple[Culprit, ...]
    changes: tuple[Change, ...]
    action: ActionKind
    advice: tuple[Advice, ...]
    not_now: tuple[str, ...]
    symptoms: tuple[Symptom, ...]
    links: dict[str, str]


class Transition(msgspec.Struct, frozen=True):
    """A change of an incident that the world should hear of. Idempotency key: incident id + kind + at."""

    kind: Literal["opened", "worsened", "eased", "resolved", "reminder"]
    at: float
    incident: Incident


class GpuState(msgspec.Struct, frozen=True):
    """Question 1: how is the GPU busy?"""

    mode: Literal["compute-bound", "bandwidth-bound", "waiting", "throttled", "idle", "mixed", "unknown"]


class RhythmState(msgspec.Struct, frozen=True):
    """Question 2: steady, recurrent (drain–refill cycles while requests wait) or periodic?"""

    kind: Literal["steady", "recurrent", "periodic", "unknown"]
    cycles: int = 0
    period_s: float | None = None
    period_cv: float | None = None
    swing_ratio: float | None = None


class QueueState(msgspec.Struct, frozen=True):
    """Question 3: is the queue growing, standing or draining, how fast, and until when?"""

    trend: Literal["empty", "growing", "standing", "draining", "unknown"]
    waiting: float | None = None
    rate_per_s: float | None = None
    until_s: float | None = None


class LatencyState(msgspec.Struct, frozen=True):
    """Question 4: which stage holds most of TTFT, its share now and in the baseline."""

    stage: str
    ttft_share: float | None = None
    baseline_share: float | None = None


class MovedState(msgspec.Struct, frozen=True):
    """Question 5: what moved first: arrivals, shape, cost, capacity, change or nothing."""

    what: Literal["arrivals", "shape", "cost", "capacity", "change", "nothing", "unknown"]
    by: str = ""
    at: float | None = None


class EngineState(msgspec.Struct, frozen=True):
    """The five answers for one engine at one second, and the one line that says them."""

    subject: Subject
    at: float
    gpu: GpuState
    rhythm: RhythmState
    queue: QueueState
    latency: LatencyState
    moved: MovedState
    lifecycle: Lifecycle
    line: str


class Blind(msgspec.Struct, frozen=True):
    """A rule that could not judge a subject, what it lacked and what would open its eyes."""

    rule: str
    missing: tuple[str, ...]
    cure: str = ""
    subject: str = ""


class Tick(msgspec.Struct, frozen=True):
    """What one call of Pipeline.step says."""

    now: float
    states: tuple[EngineState, ...] = ()
    findings: tuple[Finding, ...] = ()
    transitions: tuple[Transition, ...] = ()
    blind: tuple[Blind, ...] = ()
    open: tuple[Incident, ...] = ()


class SourceSeen(msgspec.Struct, frozen=True):
    """A source as the verdict names it: what it was, how often it answered, what failed last."""

    name: str
    role: str
    subject: str
    polls: int
    errors: int
    last_error: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The machine-readable answer (schema 1): incidents by severity then onset, symptoms only nested."""

    schema: int
    incidents: tuple[Incident, ...]
    state: EngineState | None
    blind: tuple[Blind, ...]
    sources: tuple[SourceSeen, ...]
