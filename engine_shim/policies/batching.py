"""`batching`: when requests join the running ones, and when those decode.

*Continuous* (iteration-level): a request joins as soon as there is room and leaves with its last token. *Static*
(request-level), as it was before: a batch is filled from the queue, its prompts are computed, then it decodes until its
last request has finished; only then does the next batch begin. Every row of a static batch is as long as its longest
one, and rows that have ended are computed to the batch's end: `StepPlan.padding` says what that costs a runner.
"""

from __future__ import annotations

from ..request import Request
from ..step import Padding, StepPlan, StopReason


class Continuous:
    """Requests come and go at any step."""

    fusable = True  # stretches of pure decode steps may be computed at once (simulation/fused.py)

    def begin(self, running: list[Request]) -> None:
        """A step begins."""

    def admits(self) -> bool:
        """Whether the queue is looked at in this step."""
        return True

    def decodes(self, prefilling: list[Request]) -> bool:
        """Whether requests that can decode do so in this step."""
        return True

    def planned(self, plan: StepPlan) -> None:
        """The step is planned: add what padding costs."""


class Static(Continuous):
    """One batch after the other. It is filled over as many steps as its prompts need, and decodes afterwards."""

    fusable = False

    def __init__(self) -> None:
        self._filling = True
        self._rows = 0

    def begin(self, running: list[Request]) -> None:
        """With the last of a batch gone, the next one may be filled."""
        if not running:
            self._filling, self._rows = True, 0

    def admits(self) -> bool:
        """Only while the batch is filled."""
        return self._filling

    def decodes(self, prefilling: list[Request]) -> bool:
        """Once all prompts of the batch are computed."""
        return not self._filling and not prefilling

    def planned(self, plan: StepPlan) -> None:
        """The batch is full when something else than the step's token budget ended admission."""
        self._rows += len(plan.admitted)
        self._filling = self._filling and plan.stop_reason is StopReason.TOKEN_BUDGET
        if plan.decode:
            longest = max(request.computed_tokens for request in plan.decode) + 1
            rows = self._rows - len(plan.decode)
            context_tokens = self._rows * longest - plan.context_tokens
            plan.padding = Padding(rows, rows, context_tokens, context_tokens)
        elif plan.prefill:
            chunks = [chunk for _, chunk in plan.prefill]
            longest, count = max(chunks), len(chunks)
            pairs = count * _pairs(longest) - sum(_pairs(chunk) for chunk in chunks)
            tokens = count * longest - sum(chunks)
            plan.padding = Padding(0, tokens, pairs, tokens)


def _pairs(tokens: int) -> int:
    """Pairs of a query and a key that it sees, in a causal chunk."""
    return tokens * (tokens + 1) // 2
