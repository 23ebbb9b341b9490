"""Turns what vLLM hands to a stat logger after each engine output into rows of the step ring.

What this tap knows, and what it does not. It hears of a step when its output arrives in the front end, so a step that
runs or hangs is not seen. Times: `ended_at` is the front end's clock when the output came; `begun_at` is worked out from
the engine core's own clock where a request has decoded in two steps in a row (its gap is the time from one step's end to
the next), else from the time since the output before, where requests were left to work on; otherwise it is NaN. With
`--enable-logging-iteration-details` vLLM times steps itself, and counts a step's prefill tokens, which are NaN without it:
a chunked prompt is booked when it is complete, not step by step.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from typing import Any

from .ring import Fields, Ring
from .shapes import IterationShape, PrefixShape, SchedulerShape

_NAN = math.nan
_GAPS_LOOKED_AT = 16  # the least gap of as many requests is that of one which was not preempted between
_REASONS = {"stop": 1.0, "length": 2.0, "abort": 3.0, "error": 4.0, "repetition": 5.0}
_ANSWERED = frozenset({1.0, 2.0, 5.0})
_ID_BITS = (1 << 53) - 1  # what a float64 holds exactly

STEP_FIELDS = (
    "step", "begun_at", "ended_at", "prefill_tokens", "longest_prefill_tokens", "decode_tokens", "running", "waiting",
    "waiting_capacity", "waiting_deferred", "kv_usage_ratio", "kv_used_blocks", "kv_total_blocks", "finished_total",
    "preempted_total", "prompt_tokens_total", "generated_tokens_total", "recomputed_tokens_total", "cached_tokens_total",
    "prefix_query_tokens_total", "prefix_hit_tokens_total",
)  # fmt: skip
DRAFT_FIELDS = ("draft_tokens", "drafted_tokens_total", "accepted_tokens_total")
FINISHED_FIELDS = (
    "id", "finished_at", "e2e_seconds", "queue_seconds", "prefill_seconds", "decode_seconds", "prompt_tokens",
    "cached_tokens", "max_tokens", "generated_tokens", "preemptions", "reason",
)  # fmt: skip

_STAGES = ("e2e_latency", "queued_time", "prefill_time", "decode_time")
_AMOUNTS = ("num_prompt_tokens", "num_cached_tokens", "max_tokens_param", "num_generation_tokens", "num_preemptions")


def fields_for(speculates: bool) -> Fields:
    """The columns of an engine's ring."""
    return Fields(STEP_FIELDS + DRAFT_FIELDS if speculates else STEP_FIELDS, FINISHED_FIELDS)


class StepRecorder:
    """Keeps the running totals of one engine rank and writes its rows. `now` gives unix seconds.

    `kv_blocks` is the size of the rank's pool (None: not known). `caches_prefixes`: whether lookups are made at all.
    """

    def __init__(
        self, ring: Ring, kv_blocks: int | None, now: Callable[[], float], *, caches_prefixes: bool, speculates: bool
    ) -> None:
        self._ring = ring
        self._blocks = float(kv_blocks) if kv_blocks else _NAN
        self._now = now
        self._speculates = speculates
        self._scheduler: SchedulerShape | None = None
        self._iteration: IterationShape | None = None
        self._prefix: PrefixShape | None = None
        self._salt = os.urandom(16)
        self._unnamed = 0
        self._step = 0
        self._ended_at = _NAN
        self._left = 0.0  # requests that the step before left to work on
        self._finished = self._preempted = self._prompt = self._generated = self._cached = 0.0
        known = 0.0 if caches_prefixes else _NAN
        self._queries = self._hits = self._recomputed = known
        self._drafted = self._accepted = 0.0

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Take one engine output: either part may be None. OSError where the ring cannot be written."""
        ended_at = _NAN
        decoded = 0.0
        gaps: Any = ()
        if iteration is not None:
            shape = self._iteration
            if shape is None:
                shape = self._iteration = IterationShape.of(iteration)
            if shape.timestamp is not None:
                ended_at = getattr(iteration, shape.timestamp)
            gaps = getattr(iteration, shape.gaps) if shape.gaps is not None else None
            decoded = float(len(gaps)) if gaps is not None else _NAN
            self._count(iteration, shape)
            if shape.finished is not None:
                finished = getattr(iteration, shape.finished)
                if finished:
                    self._finish(finished, ended_at if ended_at == ended_at else self._now())
        if scheduler is None:
            return
        if ended_at != ended_at:
            ended_at = self._now()
        self._write(scheduler, ended_at, decoded, gaps)

    def interrupted(self) -> None:
        """The engine stood still on purpose (it sleeps): the next step did not begin where the last one ended."""
        self._left = 0.0

    def close(self) -> None:
        """Close the ring."""
        self._ring.close()

    def _count(self, iteration: Any, shape: IterationShape) -> None:
        self._generated += getattr(iteration, shape.generated) if shape.generated is not None else _NAN
        self._preempted += getattr(iteration, shape.preempted) if shape.preempted is not None else _NAN
        if shape.prompt_by_source is not None:
            prompts = getattr(iteration, shape.prompt_by_source)
            self._prompt += prompts.total
            self._cached += prompts.cached_tokens
        else:
            self._prompt += getattr(iteration, shape.prompt) if shape.prompt is not None else _NAN
            self._cached = _NAN
        if shape.finished is None:
            self._finished = _NAN

    def _write(self, scheduler: Any, ended_at: float, decoded: float, gaps: Any) -> None:
        shape = self._scheduler
        if shape is None:
            shape = self._scheduler = SchedulerShape.of(scheduler)
        begun_at, prefill, longest = self._begun_at(ended_at, gaps), _NAN, _NAN
        if shape.details is not None and (details := getattr(scheduler, shape.details)) is not None:
            if details.is_dummy:
                return  # a rank without work keeps step with the others
            begun_at = ended_at - details.elapsed_ms / 1e3
            prefill = details.num_ctx_tokens
            longest = prefill if details.num_ctx_requests <= 1 else _NAN
        running = getattr(scheduler, shape.running) if shape.running is not None else _NAN
        waiting = capacity = getattr(scheduler, shape.waiting) if shape.waiting is not None else _NAN
        deferred = _NAN
        if shape.deferred is not None:
            deferred = getattr(scheduler, shape.deferred)
            waiting += deferred
        else:
            capacity = _NAN
        usage = getattr(scheduler, shape.kv_usage) if shape.kv_usage is not None else _NAN
        if shape.prefix is not None and (prefix := getattr(scheduler, shape.prefix)) is not None:
            self._look_up(prefix)
        self._step += 1
        row = [
            self._step, begun_at, ended_at, prefill, longest, decoded, running, waiting,
            capacity, deferred, usage, usage * self._blocks, self._blocks, self._finished,
            self._preempted, self._prompt, self._generated, self._recomputed, self._cached,
            self._queries, self._hits,
        ]  # fmt: skip
        if self._speculates:
            row += self._drafts(scheduler, shape)
        self._ring.step.append(row)
        self._ended_at, self._left = ended_at, running

    def _begun_at(self, ended_at: float, gaps: Any) -> float:
        if gaps:
            return ended_at - (min(gaps[:_GAPS_LOOKED_AT]) if len(gaps) > 1 else gaps[0])
        begun_at: float = self._ended_at if self._left > 0 else _NAN
        return begun_at

    def _look_up(self, prefix: Any) -> None:
        shape = self._prefix
        if shape is None:
            shape = self._prefix = PrefixShape.of(prefix)
        self._queries += getattr(prefix, shape.queries) if shape.queries is not None else _NAN
        self._hits += getattr(prefix, shape.hits) if shape.hits is not None else _NAN
        if shape.preempted_queries is None or shape.preempted_hits is None:
            self._recomputed = _NAN
        else:
            self._recomputed += getattr(prefix, shape.preempted_queries) - getattr(prefix, shape.preempted_hits)

    def _drafts(self, scheduler: Any, shape: SchedulerShape) -> list[float]:
        """Draft tokens of this step, and the totals before it."""
        stats = getattr(scheduler, shape.drafts) if shape.drafts is not None else None
        before = [self._drafted, self._accepted]
        if stats is None:
            return [0.0, *before]
        self._drafted += stats.num_draft_tokens
        self._accepted += stats.num_accepted_tokens
        return [stats.num_draft_tokens, *before]

    def _finish(self, requests: Any, finished_at: float) -> None:
        for request in requests:
            reason = getattr(request, "finish_reason", None)
            code = _REASONS.get(str(getattr(reason, "name", reason)).lower(), 0.0)
            self._finished += code in _ANSWERED
            stages = [_seconds(request, name) for name in _STAGES]
            prompt, cached, limit, generated, preemptions = (_amount(request, name) for name in _AMOUNTS)
            key = self._hash(getattr(request, "request_id", None))
            self._ring.finished.append([key, finished_at, *stages, prompt, cached, limit, generated, preemptions, code])

    def _hash(self, request_id: str | None) -> int:
        """A salted hash that a float64 holds exactly; never 0. A request without an id gets one of its own."""
        if request_id is None:
            self._unnamed += 1
            request_id = str(self._unnamed)
        digest = hashlib.blake2b(request_id.encode("utf-8", "replace"), digest_size=8, key=self._salt).digest()
        return (int.from_bytes(digest, "little") & _ID_BITS) or 1


def _seconds(request: Any, name: str) -> float:
    """A duration; NaN where it is not there, or where one of its ends never came (vLLM's difference is negative then)."""
    value: float = getattr(request, name, _NAN)
    return value if value >= 0 else _NAN


def _amount(request: Any, name: str) -> float:
    value = getattr(request, name, None)
    return _NAN if value is None else value
