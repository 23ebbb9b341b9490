"""Where vLLM's stats objects keep what is wanted: their classes are no stable interface, and names have changed.

A shape is looked up once, on the first object of its kind that is met. What is not there is None, and what would have
come of it is not known: never zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SchedulerShape(NamedTuple):
    """Attributes of SchedulerStats."""

    running: str | None
    waiting: str | None
    deferred: str | None
    kv_usage: str | None
    prefix: str | None
    drafts: str | None
    details: str | None

    @classmethod
    def of(cls, stats: Any) -> SchedulerShape:
        """The names that this version uses."""
        return cls(
            _name(stats, "num_running_reqs"),
            _name(stats, "num_waiting_reqs"),
            _name(stats, "num_skipped_waiting_reqs"),  # since 0.20 beside num_waiting_reqs, before that inside of it
            _name(stats, "kv_cache_usage", "gpu_cache_usage"),
            _name(stats, "prefix_cache_stats"),
            _name(stats, "spec_decoding_stats"),
            _name(stats, "iteration_details"),  # filled with --enable-logging-iteration-details
        )


class IterationShape(NamedTuple):
    """Attributes of IterationStats."""

    timestamp: str | None
    generated: str | None
    prompt: str | None
    prompt_by_source: str | None
    preempted: str | None
    finished: str | None
    first_tokens: str | None
    gaps: str | None

    @classmethod
    def of(cls, stats: Any) -> IterationShape:
        """The names that this version uses."""
        return cls(
            _name(stats, "iteration_timestamp"),
            _name(stats, "num_generation_tokens"),
            _name(stats, "num_prompt_tokens"),
            _name(stats, "prompt_token_stats"),
            _name(stats, "num_preempted_reqs"),
            _name(stats, "finished_requests"),
            _name(stats, "time_to_first_tokens_iter"),
            _name(stats, "inter_token_latencies_iter", "time_per_output_tokens_iter"),  # renamed in 0.11
        )


class PrefixShape(NamedTuple):
    """Attributes of PrefixCacheStats."""

    queries: str | None
    hits: str | None
    preempted_queries: str | None
    preempted_hits: str | None

    @classmethod
    def of(cls, stats: Any) -> PrefixShape:
        """The names that this version uses."""
        return cls(
            _name(stats, "queries"),
            _name(stats, "hits"),
            _name(stats, "preempted_queries"),
            _name(stats, "preempted_hits"),
        )


def _name(stats: Any, *names: str) -> str | None:
    """The first of these names that the object has."""
    return next((name for name in names if hasattr(stats, name)), None)
