"""What the vLLM stat logger costs the engine's front end in each step."""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tests.bench.measure import by_turns
from tests.bench.row import Row
from tests.metric_names import REPOSITORY

RUNNING = 64
FINISH_EVERY = 16  # steps: 64 requests of about a thousand tokens


def written() -> Row:
    """A step of 64 decodes into the ring, against the same into prometheus_client's families, as vLLM's own logger does."""
    sys.path.append(str(REPOSITORY / "vllm_plugin"))  # a distribution of its own, not installed here
    from gpuwatch_vllm.ring import Ring, ring_path
    from gpuwatch_vllm.steps import StepRecorder, fields_for

    with tempfile.TemporaryDirectory() as folder:
        path = ring_path(str(Path(folder)), "bench", 0)
        ring = Ring(path, "bench", 0, fields_for(False), {}, unix_ns=1, monotonic_ns=1)
        recorder = StepRecorder(ring, 1000, lambda: 0.0, caches_prefixes=True, speculates=False)
        stats, numbers = _stats(), count()

        def ours() -> None:
            scheduler, iteration = stats[next(numbers) % FINISH_EVERY]
            recorder.record(scheduler, iteration)

        tell = _families()
        now, naive = by_turns(ours, lambda: tell(*stats[1]))
        recorder.close()
    return Row("µs a step", 10.0, now * 1e6, naive * 1e6,
        note=f"stat logger alone, {RUNNING} running, a request finished every {FINISH_EVERY} steps; naive is the same told "
        "to four gauges, six counters and a histogram of prometheus_client",
    )  # fmt: skip


def _stats() -> list[tuple[SimpleNamespace, SimpleNamespace]]:
    """A cycle of steps, as vLLM 0.32 hands them over; in the first one a request finishes."""
    prefix = SimpleNamespace(queries=0, hits=0, preempted_queries=0, preempted_hits=0)
    scheduler = SimpleNamespace(
        num_running_reqs=RUNNING, num_waiting_reqs=3, num_skipped_waiting_reqs=0, kv_cache_usage=0.5,
        prefix_cache_stats=prefix, spec_decoding_stats=None, iteration_details=None,
    )  # fmt: skip
    ended = SimpleNamespace(
        finish_reason=SimpleNamespace(name="LENGTH"), request_id="cmpl-0123456789abcdef", e2e_latency=9.0,
        num_prompt_tokens=500, num_generation_tokens=1000, max_tokens_param=1000, queued_time=0.1, prefill_time=0.2,
        decode_time=8.0, num_preemptions=0, num_cached_tokens=0,
    )  # fmt: skip
    return [
        (
            scheduler,
            SimpleNamespace(
                iteration_timestamp=1e9, num_generation_tokens=RUNNING, num_prompt_tokens=0, num_preempted_reqs=0,
                finished_requests=[ended] if n == 0 else [], time_to_first_tokens_iter=[],
                inter_token_latencies_iter=[0.02] * RUNNING, prompt_token_stats=SimpleNamespace(total=0, cached_tokens=0),
            ),
        )
        for n in range(FINISH_EVERY)
    ]  # fmt: skip


def _families():
    """A teller of one step to prometheus_client."""
    registry = CollectorRegistry()
    gauges = [Gauge(f"g{n}", "…", ["model", "engine"], registry=registry).labels("m", "0") for n in range(4)]
    counters = [Counter(f"c{n}", "…", ["model", "engine"], registry=registry).labels("m", "0") for n in range(6)]
    gaps = Histogram("h", "…", ["model", "engine"], registry=registry).labels("m", "0")

    def tell(scheduler: SimpleNamespace, iteration: SimpleNamespace) -> None:
        for gauge in gauges:
            gauge.set(scheduler.num_running_reqs)
        for counter in counters:
            counter.inc(iteration.num_generation_tokens)
        for gap in iteration.inter_token_latencies_iter:
            gaps.observe(gap)

    return tell
