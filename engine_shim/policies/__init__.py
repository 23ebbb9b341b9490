"""Scheduling policies, one short file each, chosen by a setting. The scheduler asks them and knows none by name.

- `scheduling`: who waits in which order, who may pass whom, and who loses its KV first (fifo.py, fifo_wait_limit.py,
  priority.py, shortest_prompt.py; displacement.py)
- `batching`: when requests may join, and when decodes run (batching.py)
- `prefill_step_share`, `prefill_step_seconds`: how many tokens prefills may take beside decodes (prefill_budget.py)
- `max_long_prefills`: how many long prompts may be under way at once (long_prefills.py)
"""

from __future__ import annotations

from collections.abc import Callable

from ..request import Request
from ..settings.engine import EngineSettings
from .batching import Continuous, Static
from .fifo import Fifo
from .fifo_wait_limit import FifoWaitLimit
from .long_prefills import LongPrefills
from .prefill_budget import StepSeconds, StepShare, WholeStep
from .priority import Priority
from .shortest_prompt import ShortestPrompt

__all__ = ["batching_for", "long_prefills_for", "order_for", "prefill_budget_for", "queue_rank"]

_ORDERS = {
    "fifo": Fifo,
    "fifo_wait_limit": FifoWaitLimit,
    "priority": Priority,
    "shortest_prompt": ShortestPrompt,
}
_BATCHING = {"continuous": Continuous, "static": Static}


def order_for(settings: EngineSettings) -> Fifo:
    """The order in which requests are served: `scheduling`."""
    return _ORDERS[settings.scheduling](settings)


def queue_rank(settings: EngineSettings, now: Callable[[], float]) -> Callable[[Request], float] | None:
    """By what a list of waiting requests is sorted into the queue's order, those of equal rank by arrival.

    None where that is the order of arrival, with the latest preempted first.
    """
    order = order_for(settings)
    return (lambda request: order.rank(request, now())) if order.ranked else None


def batching_for(settings: EngineSettings) -> Continuous:
    """When requests join the running ones: `batching`."""
    return _BATCHING[settings.batching]()


def prefill_budget_for(settings: EngineSettings) -> WholeStep:
    """What prefills may take of a step in which requests decode."""
    if settings.prefill_step_seconds:
        return StepSeconds(settings.prefill_step_seconds, settings.block_tokens)
    if settings.prefill_step_share < 1:
        return StepShare(settings.prefill_step_share, settings.max_step_tokens)
    return WholeStep()


def long_prefills_for(settings: EngineSettings) -> LongPrefills:
    """How many long prompts may be computed at once."""
    return LongPrefills(settings.max_long_prefills, settings.long_prefill_tokens)
