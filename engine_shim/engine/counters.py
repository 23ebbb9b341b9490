"""What an engine has done since its start: cumulative counts that a restart sets back to zero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Requests and tokens. The order is that of the cumulative fields of step.STEP_FIELDS.

    `prompt_tokens` counts prompt tokens whose KV became available for the first time, computed or found in the prefix
    cache; work repeated after a preemption counts as `recomputed_tokens` only.
    """

    arrived: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0
    preempted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0

    def row(self) -> list[int]:
        """The counts in order."""
        return [
            self.arrived, self.finished, self.aborted, self.rejected, self.preempted,
            self.prompt_tokens, self.generated_tokens, self.recomputed_tokens, self.cached_tokens,
        ]  # fmt: skip
