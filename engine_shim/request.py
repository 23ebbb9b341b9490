"""A request on its way through the engine: what was asked, how far it is, and when each stage began."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Stage(IntEnum):
    """Where a request is. The numbers are those of docs/ring.md."""

    RECEIVED = 0
    QUEUE = 1
    PREFILL = 2
    DECODE = 3
    REQUEUE = 4  # preempted: its KV is gone and must be computed again
    FINISHED = 5


@dataclass(slots=True, eq=False)
class Request:
    """One request. Token counts are of tokens, times are clock seconds (see clock.py).

    `prompt` holds token ids for the torch runner and is empty for modelled runs, where only `prompt_tokens` counts.
    `prefix_key` names a prompt prefix that is shared by requests (modelled prefix reuse); the torch path hashes real ids.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    arrived_at: float
    stop_after: int  # the request ends after so many output tokens (EOS or max_tokens, whichever comes first)
    prompt: list[int] = field(default_factory=list)
    prefix_key: int = 0
    prefix_tokens: int = 0
    tenant: str = ""
    sampling: object | None = None

    stage: Stage = Stage.RECEIVED
    computed_tokens: int = 0  # tokens whose KV is in the cache (prompt and output)
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache at first admission
    output_tokens: int = 0
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0
    recomputed_tokens: int = 0
    finish_reason: str = ""  # stop, length, abort, error, rejected
    # (stage, start, end) in order; after a preemption come requeue and prefill again
    stages: list[tuple[Stage, float, float]] = field(default_factory=list)
    stage_since: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finished_at: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Prompt plus the output generated so far: the length whose KV must be in the cache for the next token."""
        return self.prompt_tokens + self.output_tokens

    def enter(self, stage: Stage, now: float) -> None:
        """Close the current stage at `now` and begin `stage`."""
        if self.stage not in (Stage.RECEIVED, Stage.FINISHED):
            self.stages.append((self.stage, self.stage_since, now))
        self.stage = stage
        self.stage_since = now
