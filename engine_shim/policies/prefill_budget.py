"""How many tokens prefills may take in a step in which requests decode: what keeps a long prompt from stalling tokens.

Every decoding request waits for the whole step, so a chunk of thousands of prompt tokens is a gap in everybody's output.
`prefill_step_share` limits prefills to a share of `max_step_tokens`; `prefill_step_seconds` names the step time that
should come out, and the chunk size follows what steps are measured to take. While nobody decodes, prefills get it all.
"""

from __future__ import annotations

from ..step import StepPlan

_FIRST_TOKENS = 128  # the first mixed step is a careful one
_MOST_GROWTH, _MOST_CUT = 2.0, 0.25  # of one step to the next
_MOST_TOKENS = 1 << 30


class WholeStep:
    """No limit but the step's budget."""

    def tokens(self, budget_tokens: int, decodes: int) -> int:
        """Tokens for prefills, of the `budget_tokens` that `decodes` decoding requests have left."""
        return budget_tokens

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """A step has taken so long."""


class StepShare(WholeStep):
    """A fixed share of a step's tokens, at least one."""

    def __init__(self, share: float, max_step_tokens: int) -> None:
        self._most_tokens = max(int(share * max_step_tokens), 1)

    def tokens(self, budget_tokens: int, decodes: int) -> int:
        """See WholeStep."""
        return min(budget_tokens, self._most_tokens) if decodes else budget_tokens


class StepSeconds(WholeStep):
    """Chunks sized so that a mixed step takes `target_s`.

    After each mixed step the size is scaled by target / measured. A step's time grows at most in proportion to its
    chunk, because decodes have a part in it that the chunk does not change, so this approaches the target and does not
    swing about it; a first step after a change of load may miss it. One block's tokens are always allowed, even where
    decodes alone take longer than the target: prefills must go on.
    """

    def __init__(self, target_s: float, least_tokens: int) -> None:
        self._target_s = target_s
        self._least_tokens = least_tokens
        self._tokens = max(_FIRST_TOKENS, least_tokens)

    def tokens(self, budget_tokens: int, decodes: int) -> int:
        """See WholeStep."""
        return min(budget_tokens, self._tokens) if decodes else budget_tokens

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a mixed step; what other limits kept small says nothing about larger chunks."""
        if not (plan.prefill and plan.decode) or seconds <= 0:
            return
        computed = sum(chunk for _, chunk in plan.prefill)
        ratio = min(max(self._target_s / seconds, _MOST_CUT), _MOST_GROWTH)
        if ratio < 1 or computed >= self._tokens:
            self._tokens = min(max(int(computed * ratio), self._least_tokens), _MOST_TOKENS)
