"""The same engine as vLLM V1 would show it: its names, its buckets, its times of booking, and what it leaves out.

Semantics as observed on vLLM 0.32: gauges are those of the last finished step, so everything freezes while a step runs
and arrivals stay unseen; a preemption is counted with the victim's next token; a prompt is booked when its prefill
completes; queue time is the first wait only; recomputation, the head's wait and client disconnects are not shown.
Labels `model_name` and `engine` on every series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..request import Request, Stage
from .exposition import Family, Histogram, Page, by_label, histogram, info, pairs, single
from .gaps import TokenTimes
from .info import EngineInfo
from .live import LiveRequests
from .milestones import first_wait

# fmt: off
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)
GAP_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
LATENCY_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                  480.0, 960.0, 1920.0, 7680.0)
ITERATION_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)
# fmt: on

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_bounds(max_model_len: int) -> tuple[int, ...]:
    """vLLM's 1-2-5 series up to the model's longest context."""
    bounds, decade = [], 1
    while True:
        for step in (1, 2, 5):
            if step * decade > max_model_len:
                return tuple(bounds)
            bounds.append(step * decade)
        decade *= 10


def _histograms(max_model_len: int) -> dict[str, tuple[str, Sequence[float]]]:
    tokens = token_bounds(max_model_len)
    return {
        "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", TTFT_BOUNDS),
        "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", GAP_BOUNDS),
        "request_time_per_output_token_seconds": ("Histogram of time per output token per request.", GAP_BOUNDS),
        "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", LATENCY_BOUNDS),
        "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", LATENCY_BOUNDS),
        "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", LATENCY_BOUNDS),
        "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", LATENCY_BOUNDS),
        "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", LATENCY_BOUNDS),
        "iteration_tokens_total": ("Histogram of number of tokens per engine step.", ITERATION_BOUNDS),
        "request_prompt_tokens": ("Number of prefill tokens processed.", tokens),
        "request_generation_tokens": ("Number of generation tokens processed.", tokens),
        "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", tokens),
        "request_num_preemptions": ("Histogram of preemptions per request.", PREEMPTION_BOUNDS),
    }


class VllmMetrics:
    """The telemetry part that keeps and prints vLLM's view."""

    def __init__(self, info: EngineInfo, live: LiveRequests, extra: Sequence[Family] = ()) -> None:
        self._info = info
        self._live = live
        self._shown: dict[str, float] = {}  # the last finished step
        self._unbooked: dict[Request, int] = {}  # preemptions of victims that have had no token since
        self._preempted = 0
        self._prompt_tokens = 0
        self._queried_tokens = 0
        self._prefilled: list[tuple[float, int]] = []  # (when, tokens) of prefills that ended since the last block
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        table = _histograms(info.max_model_len)
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in table.items()}
        self._tokens = TokenTimes(self._histograms["inter_token_latency_seconds"], self._first_token)
        self._page = Page([*self._families({name: text for name, (text, _) in table.items()}), *extra])

    def steps(self, columns: dict[str, np.ndarray]) -> None:
        """Take completed steps, oldest first, at least one; only the last one's gauges are ever shown."""
        ended_at = columns["ended_at"]
        self._shown = {name: float(column[-1]) for name, column in columns.items()}
        outputs = columns["decode_tokens"].astype(float)
        if self._prefilled:
            times, tokens = np.array(self._prefilled).T
            steps = np.minimum(np.searchsorted(ended_at, times, side="left"), len(ended_at) - 1)
            outputs += np.bincount(steps, weights=tokens, minlength=len(outputs))
            self._prefilled = []
        self._histograms["iteration_tokens_total"].observe_many(outputs[outputs > 0])
        self._tokens.steps(ended_at, columns["decode_tokens"])

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Follow tokens and preemptions, late as vLLM does."""
        if stage == Stage.REQUEUE:
            self._unbooked[request] = self._unbooked.get(request, 0) + 1
        elif stage == Stage.DECODE:
            self._preempted += self._unbooked.pop(request, 0)
            self._prefilled.append((now, 1))  # a prefill that ends yields a token
        self._tokens.stage_changed(request, stage, now)

    def finished(self, request: Request) -> None:
        """Book a request that ended by itself; disconnects and rejections leave no trace."""
        self._tokens.finished(request)
        self._unbooked.pop(request, None)
        reason = request.finish_reason
        if reason not in ("stop", "length", "error"):
            return
        self._finished[reason] += 1
        book = self._histograms
        queued, prefill_at = first_wait(request)
        book["e2e_request_latency_seconds"].observe(request.finished_at - request.arrived_at)
        book["request_queue_time_seconds"].observe(queued)
        book["request_inference_time_seconds"].observe(request.last_token_at - prefill_at)
        book["request_prefill_time_seconds"].observe(request.first_token_at - prefill_at)
        book["request_decode_time_seconds"].observe(request.last_token_at - request.first_token_at)
        book["request_prompt_tokens"].observe(request.prompt_tokens)
        book["request_generation_tokens"].observe(request.output_tokens)
        book["request_params_max_tokens"].observe(request.max_tokens)
        book["request_num_preemptions"].observe(request.preemptions)
        gaps = request.output_tokens - 1
        mean_s = (request.last_token_at - request.first_token_at) / gaps if gaps > 0 else 0.0
        book["request_time_per_output_token_seconds"].observe(mean_s)

    def render(self, names: Sequence[str] | None = None) -> bytes:
        """The page as bytes; `names` filters as `?name[]=` does on `/metrics/`."""
        return self._page.render(names)

    def _first_token(self, request: Request, at: float) -> None:
        self._histograms["time_to_first_token_seconds"].observe(at - request.arrived_at)
        self._prompt_tokens += request.prompt_tokens
        self._queried_tokens += request.prompt_tokens
        self._prefilled.append((at, request.prompt_tokens))

    def _shown_field(self, field: str) -> float:
        return self._shown.get(field, 0.0)

    def _idle(self) -> bool:
        return not self._live.running

    def _gauge(self, field: str) -> Callable[[], float]:
        # The last output of an engine that has run dry carries zeros: nothing runs, nothing waits.
        return lambda: 0.0 if self._idle() and not self._live.waiting else self._shown_field(field)

    def _kv_usage(self) -> float:
        blocks = self._shown_field("kv_total_blocks")
        return 0.0 if self._idle() or not blocks else self._shown_field("kv_used_blocks") / blocks

    def _families(self, histogram_help: dict[str, str]) -> list[Family]:
        labels = pairs({"engine": "0", "model_name": self._info.model})
        running, waiting = self._gauge("running"), self._gauge("waiting")
        counter_rows: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("num_preemptions_total", "Cumulative number of preemptions.", lambda: self._preempted),
            ("prompt_tokens_total", "Number of prefill tokens processed.", lambda: self._prompt_tokens),
            (
                "generation_tokens_total",
                "Number of generation tokens processed.",
                lambda: self._shown_field("generated_tokens_total"),
            ),
            ("prefix_cache_queries_total", "Prefix cache queries in tokens.", lambda: self._queried_tokens),
            (
                "prefix_cache_hits_total",
                "Prefix cache hits in tokens.",
                lambda: self._shown_field("cached_tokens_total"),
            ),
        )
        families = [
            single("vllm:num_requests_running", "gauge", "Requests in execution batches.", running, labels),
            single("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", waiting, labels),
            by_label(
                "vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.", "reason",
                lambda: {"capacity": waiting(), "deferred": self._live.deferred()}, labels,
            ),
            single("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent.", self._kv_usage, labels),
            *(single(f"vllm:{name}", "counter", text, read, labels) for name, text, read in counter_rows),
            by_label(
                "vllm:request_success_total", "counter", "Count of successfully processed requests.",
                "finished_reason", lambda: self._finished, labels,
            ),
        ]  # fmt: skip
        for name, text in histogram_help.items():
            families.append(histogram(f"vllm:{name}", text, self._histograms[name], labels))
        families.append(info("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", self._config()))
        families.append(
            single("process_start_time_seconds", "gauge", "Start time of the process.", lambda: self._info.started_at)
        )
        return families

    def _config(self) -> dict[str, str]:
        facts = self._info
        return {
            "engine": "0",
            "block_size": str(facts.block_tokens),
            "num_gpu_blocks": str(facts.kv_total_blocks),
            "kv_cache_size_tokens": str(facts.kv_capacity_tokens),
            "enable_prefix_caching": str(bool(facts.arguments.get("prefix_cache", False))),
        }
