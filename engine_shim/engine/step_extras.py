"""Step fields that a record has only where the engine has what they speak of.

They follow step.STEP_FIELDS, in the order of `EXTRA_FIELDS`: an engine without the feature writes the same records as
before there was one, and readers, who find fields by name, miss what is not there (docs/ring.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..settings.engine import EngineSettings
from ..step import STEP_FIELDS
from .scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ExtraField:
    """A whole number in the record of a step as planned; `read` is asked when the step begins."""

    name: str
    present: Callable[[EngineSettings], bool]
    read: Callable[[Scheduler], float]


def _speculates(settings: EngineSettings) -> bool:
    return settings.speculative != "none"


EXTRA_FIELDS = (
    ExtraField(
        "kv_transfers",
        lambda settings: settings.prefill_devices > 0,
        lambda scheduler: scheduler.kv_transfers,
    ),
    ExtraField(
        "kv_largest_free_blocks",
        lambda settings: settings.kv_layout == "contiguous",
        lambda scheduler: scheduler.pool.largest_free_blocks,
    ),
    ExtraField("draft_tokens", _speculates, lambda scheduler: scheduler.speculation.planned_tokens),
    ExtraField("drafted_tokens_total", _speculates, lambda scheduler: scheduler.speculation.counts.draft_tokens),
    ExtraField("accepted_tokens_total", _speculates, lambda scheduler: scheduler.speculation.counts.accepted_tokens),
)


def extra_fields(settings: EngineSettings) -> tuple[ExtraField, ...]:
    """The extra fields of an engine with these settings."""
    return tuple(extra for extra in EXTRA_FIELDS if extra.present(settings))


def step_fields(settings: EngineSettings) -> tuple[str, ...]:
    """All names of the engine's step records, in order."""
    return (*STEP_FIELDS, *(extra.name for extra in extra_fields(settings)))
