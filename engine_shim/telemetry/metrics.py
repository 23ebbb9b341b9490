"""The engine's own Prometheus metrics, prefix `shim:`: what a vLLM-like page shows, plus what such a page hides.

Names are parallel to vLLM's where they mean the same. Beyond it: live waiting counts, the head's wait, how many waiting
requests would fit, recomputed tokens, KV fragmentation, step times, and buckets down to a millisecond. Counters come
straight from the step record (cumulative fields of docs/ring.md); histograms are booked when the event happens.
Base units; ratios 0–1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan

import numpy as np

from ..kv.fragmentation import external_ratio
from ..protection.refusal import OTHER
from ..request import Request, Stage
from .exposition import Family, Histogram, Page, by_label, histogram, info, pairs, single
from .gaps import TokenTimes
from .info import EngineInfo
from .live import LiveRequests
from .milestones import first_wait

# fmt: off
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5,
                  5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
              0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
# fmt: on

FINISHED_REASONS = ("stop", "length", "error")

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Arrival to first token.", LATENCY_BOUNDS),
    "inter_token_latency_seconds": ("Gap between two tokens of a request.", GAP_BOUNDS),
    "time_per_output_token_seconds": ("Mean gap between tokens of a finished request.", GAP_BOUNDS),
    "e2e_request_latency_seconds": ("Arrival to last token of a finished request.", LATENCY_BOUNDS),
    "request_queue_time_seconds": ("First wait of a finished request.", LATENCY_BOUNDS),
    "request_prefill_time_seconds": ("First scheduled to first token of a finished request.", LATENCY_BOUNDS),
    "request_decode_time_seconds": ("First to last token of a finished request.", LATENCY_BOUNDS),
    "request_requeue_time_seconds": ("Waits after preemptions of a finished request that had any.", LATENCY_BOUNDS),
    "step_seconds": ("Duration of a scheduler step.", GAP_BOUNDS),
    "request_prompt_tokens": ("Prompt length of a finished request.", TOKEN_BOUNDS),
    "request_generation_tokens": ("Output length of a finished request.", TOKEN_BOUNDS),
    "request_max_tokens": ("Output length that a finished request had asked for.", TOKEN_BOUNDS),
}

_COUNTERS = {
    "steps_total": ("step", "Scheduler steps completed; stands still while a step runs."),
    "requests_arrived_total": ("arrived_total", "Requests received."),
    "requests_aborted_total": ("aborted_total", "Requests whose client went away."),
    "num_preemptions_total": ("preempted_total", "Running requests that lost their KV."),
    "prompt_tokens_total": (
        "prompt_tokens_total",
        "Prompt tokens whose KV became available, computed or found in the prefix cache.",
    ),
    "generation_tokens_total": ("generated_tokens_total", "Tokens generated."),
    "recomputed_tokens_total": ("recomputed_tokens_total", "Tokens whose KV was computed again after a preemption."),
    "prefix_cache_hits_tokens_total": ("cached_tokens_total", "Prompt tokens found in the prefix cache."),
}


class EngineMetrics:
    """Keeps the numbers; `render` prints them. One writer (the engine's thread), readers see whole numbers."""

    def __init__(
        self, info: EngineInfo, live: LiveRequests, now: Callable[[], float], extra: Sequence[Family] = ()
    ) -> None:
        self._info = info
        self._live = live
        self._now = now
        self._step: dict[str, float] = {}  # the last completed one
        self._queried_tokens = 0
        self._looked_up: set[Request] = set()
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._rejected = dict.fromkeys(info.rejection_reasons, 0)
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._step_seconds = self._histograms["step_seconds"]
        self._tokens = TokenTimes(self._histograms["inter_token_latency_seconds"], self._first_token)
        self._page = Page([*self._families(), *extra])

    def steps(self, columns: dict[str, np.ndarray]) -> None:
        """Take completed steps, oldest first, at least one; fields of step.STEP_FIELDS."""
        ended_at = columns["ended_at"]
        self._step = {name: float(column[-1]) for name, column in columns.items()}
        self._step_seconds.observe_many(ended_at - columns["begun_at"])
        self._tokens.steps(ended_at, columns["decode_tokens"])

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Follow prefix lookups and token times."""
        if stage == Stage.PREFILL and request not in self._looked_up:
            self._looked_up.add(request)
            self._queried_tokens += request.prompt_tokens
        self._tokens.stage_changed(request, stage, now)

    def finished(self, request: Request) -> None:
        """Book a request that has left."""
        self._tokens.finished(request)
        self._looked_up.discard(request)
        reason = request.finish_reason
        if reason in self._finished:
            self._finished[reason] += 1
        elif reason.startswith("rejected"):
            self._rejected[request.rejected_for if request.rejected_for in self._rejected else OTHER] += 1
        if reason not in ("stop", "length"):
            return
        book = self._histograms
        queued_s, scheduled_at = first_wait(request)
        book["e2e_request_latency_seconds"].observe(request.finished_at - request.arrived_at)
        book["request_queue_time_seconds"].observe(queued_s)
        book["request_prefill_time_seconds"].observe(request.first_token_at - scheduled_at)
        book["request_decode_time_seconds"].observe(request.last_token_at - request.first_token_at)
        if request.preemptions:
            waits = (end - start for stage, start, end in request.stages if stage == Stage.REQUEUE)
            book["request_requeue_time_seconds"].observe(sum(waits))
        book["request_prompt_tokens"].observe(request.prompt_tokens)
        book["request_generation_tokens"].observe(request.output_tokens)
        book["request_max_tokens"].observe(request.max_tokens)
        if request.output_tokens > 1:
            mean_s = (request.last_token_at - request.first_token_at) / (request.output_tokens - 1)
            book["time_per_output_token_seconds"].observe(mean_s)

    def render(self, names: Sequence[str] | None = None) -> bytes:
        """The page as bytes; `names` filters as `?name[]=` does."""
        return self._page.render(names)

    def _first_token(self, request: Request, at: float) -> None:
        self._histograms["time_to_first_token_seconds"].observe(at - request.arrived_at)

    def _total(self, field: str) -> float:
        return self._step.get(field, 0.0)  # before the first step nothing has happened: that is a true zero

    def _kv_usage(self) -> float | None:
        return self._ratio("kv_used_blocks", "kv_total_blocks") if self._live.running else 0.0

    def _ratio(self, part: str, whole: str, scale: float = 1.0) -> float | None:
        total = self._step.get(whole)
        return self._step[part] / (total * scale) if total else None

    def _external_fragmentation(self) -> float | None:
        step = self._step
        if "kv_largest_free_blocks" not in step:
            return None  # a paged pool, or nothing has happened yet
        free = step["kv_total_blocks"] - step["kv_used_blocks"] - step["kv_reserved_blocks"]
        ratio = external_ratio(step["kv_largest_free_blocks"], free)
        return None if isnan(ratio) else ratio

    def _head_wait(self) -> float:
        head = self._live.head()
        return 0.0 if head is None else max(self._now() - head.stage_since, 0.0)

    def _waiting_fit(self) -> float | None:
        return self._step.get("waiting_fit") if self._live.waiting else 0.0

    def _families(self) -> list[Family]:
        model = pairs({"model_name": self._info.model})
        families = [*self._gauges(model)]
        for name, (field, text) in _COUNTERS.items():
            families.append(single(f"shim:{name}", "counter", text, partial(self._total, field), model))
        families += [
            single(
                "shim:prefix_cache_queries_tokens_total", "counter",
                "Prompt tokens looked up in the prefix cache.", lambda: self._queried_tokens, model,
            ),
            by_label(
                "shim:request_success_total", "counter",
                "Requests that ended by themselves.", "finished_reason", lambda: self._finished, model,
            ),
            by_label(
                "shim:requests_rejected_total", "counter",
                "Requests that were not accepted.", "reason", lambda: self._rejected, model,
            ),
        ]  # fmt: skip
        for name, (text, _) in _HISTOGRAMS.items():
            families.append(histogram(f"shim:{name}", text, self._histograms[name], model))
        labels = {"engine": self._info.engine, **self._info.labels()}
        families.append(info("shim:engine_info", "What the engine is and was started with.", labels))
        return families

    def _gauges(self, model: str) -> list[Family]:
        limits, live, info = self._info.limits(), self._live, self._info
        reserved = partial(self._ratio, "kv_reserved_blocks", "kv_total_blocks")
        unused = partial(self._ratio, "kv_slots_unused", "kv_used_blocks", info.block_tokens)
        cached = partial(self._ratio, "kv_cached_blocks", "kv_total_blocks")
        rows: list[tuple[str, str, Callable[[], float | None]]] = [
            ("num_requests_running", "Requests that hold KV.", lambda: live.running),
            ("num_requests_waiting", "Requests that wait for KV, preempted ones included.", lambda: live.waiting),
            ("waiting_fit_requests", "Waiting requests that would fit alone into the free blocks.", self._waiting_fit),
            ("head_wait_seconds", "How long the head of the queue has waited.", self._head_wait),
            ("kv_cache_usage_ratio", "KV blocks held by requests; reusable prefixes count as free.", self._kv_usage),
            ("kv_cached_ratio", "Free KV blocks that hold a reusable prefix.", cached),
            ("kv_reserved_unused_ratio", "KV blocks promised to requests and not written.", reserved),
            ("kv_internal_fragmentation_ratio", "Token slots of held blocks that hold no token.", unused),
            (
                "kv_external_fragmentation_ratio",
                "Free KV blocks outside the longest free run of a contiguous pool.",
                self._external_fragmentation,
            ),
            ("kv_capacity_tokens", "Token slots of the KV pool.", lambda: limits["kv_capacity_tokens"]),
            ("max_num_seqs", "Most requests that may hold KV at once.", lambda: limits["max_num_seqs"]),
        ]
        started = single(
            "process_start_time_seconds", "gauge",
            "Start of the engine in unix seconds.", lambda: info.started_at,
        )  # fmt: skip
        return [*(single(f"shim:{name}", "gauge", text, read, model) for name, text, read in rows), started]
