"""Stats objects as several versions of vLLM hand them to a stat logger: the attributes that each has, and no others."""

import enum
from types import SimpleNamespace as Object


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class Version(enum.Enum):
    """V0_8 … are layouts, named for the first release that had them."""

    V0_8 = "0.8"
    V0_11 = "0.11"
    V0_32 = "0.32"


def config(**changes):
    """A VllmConfig in the layout of 0.32, as far as the plugin looks at it."""
    parts = {
        "cache_config": Object(block_size=16, num_gpu_blocks=101, enable_prefix_caching=True, kv_cache_size_tokens=1600),
        "scheduler_config": Object(max_num_seqs=8, max_num_batched_tokens=2048, policy="fcfs"),
        "parallel_config": Object(
            data_parallel_size=1, data_parallel_size_local=1, data_parallel_rank_local=None, local_engines_only=False,
            _api_process_count=1, tensor_parallel_size=1,
        ),
        "model_config": Object(served_model_name=["tiny"], model="/somewhere/tiny", max_model_len=4096, dtype="bf16"),
        "speculative_config": None,
    }  # fmt: skip
    return Object(**{**parts, **changes})


def scheduler(version=Version.V0_32, running=2, waiting=1, deferred=0, usage=0.5, prefix=None, **more):
    """SchedulerStats."""
    stats = Object(num_running_reqs=running, prefix_cache_stats=prefix, spec_decoding_stats=None)
    if version is Version.V0_32:
        stats.num_waiting_reqs, stats.num_skipped_waiting_reqs = waiting - deferred, deferred
        stats.iteration_details = None
    else:
        stats.num_waiting_reqs = waiting
    setattr(stats, "gpu_cache_usage" if version is Version.V0_8 else "kv_cache_usage", usage)
    for name, value in more.items():
        setattr(stats, name, value)
    return stats


def prefix(version=Version.V0_32, queries=0, hits=0, preempted_queries=0, preempted_hits=0):
    """PrefixCacheStats."""
    stats = Object(reset=False, requests=1, queries=queries, hits=hits)
    if version is not Version.V0_8:
        stats.preempted_requests, stats.preempted_queries = 1, preempted_queries
        stats.preempted_hits = preempted_hits
    return stats


def iteration(
    version=Version.V0_32,
    at=1000.0,
    generated=0,
    prompt=0,
    cached=0,
    preempted=0,
    gaps=(),
    first_tokens=(),
    finished=(),
):
    """IterationStats."""
    stats = Object(
        iteration_timestamp=at, num_generation_tokens=generated, num_preempted_reqs=preempted,
        finished_requests=list(finished), time_to_first_tokens_iter=list(first_tokens), num_prompt_tokens=prompt,
    )  # fmt: skip
    old = version is Version.V0_8
    setattr(stats, "time_per_output_tokens_iter" if old else "inter_token_latencies_iter", list(gaps))
    if version is Version.V0_32:
        stats.prompt_token_stats = Object(total=prompt, cached_tokens=cached, computed=prompt - cached)
    return stats


def finished(version=Version.V0_32, reason=FinishReason.LENGTH, **said):
    """FinishedRequestStats."""
    stats = Object(
        finish_reason=reason, e2e_latency=2.0, num_prompt_tokens=100, num_generation_tokens=20, max_tokens_param=20,
        queued_time=0.5, prefill_time=0.25, inference_time=1.25, decode_time=1.0,
    )  # fmt: skip
    if version is Version.V0_32:
        stats.request_id, stats.num_preemptions, stats.num_cached_tokens = "cmpl-1", 1, 32
    for name, value in said.items():
        setattr(stats, name, value)
    return stats
