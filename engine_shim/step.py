"""What one scheduler step plans and what came of it: the seam between scheduler, runner and telemetry."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from .request import Request, Stage


class StopReason(IntEnum):
    """Why admission ended in a step. The numbers are those of docs/ring.md."""

    QUEUE_EMPTY = 0
    NO_BLOCKS = 1
    MAX_NUM_SEQS = 2
    TOKEN_BUDGET = 3
    WATERMARK = 4
    PREEMPTED = 5
    RESERVATION = 6
    LONG_PREFILLS = 7
    BATCH_RUNNING = 8


@dataclass(frozen=True, slots=True)
class Padding:
    """What a step computes and nobody uses, because the rows of a static batch are as long as its longest one.

    `samples` are next tokens of rows that have ended, `tokens` all rows of padding, `pairs` their pairs of a query and
    a key, and `read_tokens` the KV tokens that they read.
    """

    samples: int
    tokens: int
    pairs: int
    read_tokens: int


NO_PADDING = Padding(0, 0, 0, 0)


@dataclass(slots=True)
class StepPlan:
    """The work of one step. `prefill` pairs a request with the number of its tokens to compute now."""

    prefill: list[tuple[Request, int]] = field(default_factory=list)
    decode: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    stop_reason: StopReason = StopReason.QUEUE_EMPTY
    context_tokens: int = 0  # KV tokens that the decodes of this step read, their new ones included
    padding: Padding | None = None  # of a static batch
    # Speculation: tokens guessed for requests of `decode`, and, from the runner, those that follow the request's next
    # one because the draft was right so far (engine/speculative.py).
    drafts: dict[Request, list[int]] = field(default_factory=dict)
    accepted: dict[Request, list[int]] = field(default_factory=dict)


# The fields of a step record, in the order of docs/ring.md. A record is a list of floats in this order.
STEP_FIELDS = (
    "step", "begun_at", "ended_at", "prefill_tokens", "decode_tokens", "longest_prefill_tokens",
    "running", "waiting", "waiting_fit", "head_wait_seconds", "head_need_blocks", "stop_reason",
    "kv_used_blocks", "kv_total_blocks", "kv_cached_blocks", "kv_reserved_blocks", "kv_slots_unused",
    "arrived_total", "finished_total", "aborted_total", "rejected_total", "preempted_total",
    "prompt_tokens_total", "generated_tokens_total", "recomputed_tokens_total", "cached_tokens_total",
)  # fmt: skip

# The rows of the live request table: docs/ring.md.
REQUEST_FIELDS = (
    "id", "arrived_at", "stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions",
)  # fmt: skip


class Runner(Protocol):
    """Computes a step. `torch` computes tokens and takes real time; `model` only says how long a device would take."""

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """Run the step.

        Returns the next token id for each request of `plan.decode`, then for each request of `plan.prefill` whose
        prefill completes with this step (ids are 0 where nothing is computed), and the step's duration in seconds.
        """
        ...


class Telemetry(Protocol):
    """Everything the engine tells the world passes here, once. Implementations must be cheap and must not raise."""

    def step_begun(self, record: list[float]) -> None:
        """A step starts; `record` has STEP_FIELDS with the planned values and ended_at = 0."""
        ...

    def step_ended(self, record: list[float]) -> None:
        """The same record, completed."""
        ...

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """A request enters a stage (also when it is preempted and when it finishes)."""
        ...

    def finished(self, request: Request) -> None:
        """A request has left the engine, for whatever reason; its stages and finish_reason are final."""
        ...
