"""A request on its way through the engine: what was asked, how far it is, and when each stage began."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class Stage(IntEnum):
    """Where a request is. The numbers are those of docs/ring.md."""

    RECEIVED = 0
    QUEUE = 1
    PREFILL = 2
    DECODE = 3
    REQUEUE = 4  # preempted: its KV is gone and must be computed again
    FINISHED = 5
    TRANSFER = 6  # its KV was computed elsewhere and is on its way (disaggregated/)


PRIORITY_CLASSES = ("interactive", "batch")  # who waits for an answer, and who has time


class Listener(Protocol):
    """Who waits for a request's tokens. Called by the thread that steps the engine; must be quick and not raise."""

    def on_token(self, request: Request, token_id: int) -> None:
        """One more token of the output; `request.output_tokens` counts it already."""
        ...

    def on_finish(self, request: Request) -> None:
        """The request has left the engine; `finish_reason` is final. Comes after the last token."""
        ...


@dataclass(slots=True, eq=False)
class Request:
    """One request. Token counts are of tokens, times are clock seconds (see clock.py).

    `prompt` holds token ids for the torch runner and is empty for modelled runs, where only `prompt_tokens` counts.
    `prefix_key` names a prompt prefix that requests share (modelled prefix reuse); the torch path hashes real ids.
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
    client: str = ""  # a salted hash of the sender's API key, if it has one
    deadline_at: float = math.inf  # clock time by which the client wants the first token
    priority: int = 0  # index into PRIORITY_CLASSES
    draft_acceptance: float = math.nan  # modelled: chance of each token of its drafts; NaN: the engine's setting
    sampling: object | None = None
    listener: Listener | None = None

    stage: Stage = Stage.RECEIVED
    computed_tokens: int = 0  # tokens whose KV is in the cache (prompt and output)
    computed_peak_tokens: int = 0  # the most that were ever computed: after a preemption, work below it is repeated
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache at first admission
    output_tokens: int = 0
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    reserved_blocks: int = 0  # what admission promised in all; blocks up to that number are its own, held or not
    block_keys: list[bytes] = field(default_factory=list)  # of the full blocks hashed so far (kv/prefix.py)
    published_blocks: int = 0  # of its blocks, from the front, that are offered for reuse
    preemptions: int = 0
    recomputed_tokens: int = 0
    finish_reason: str = ""  # stop, length, abort, error, rejected
    rejected_for: str = ""  # why it was rejected: a word of protection/refusal.py
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
