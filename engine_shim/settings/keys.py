"""The keys of [engine] and their defaults: data only. The checks beside this file say which combinations make sense."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineKeys:
    """See docs/scenario.md. `kv_pool_tokens` wins over `kv_pool_ratio`, the share of the device's room that is used."""

    model: str = "tiny"
    max_num_seqs: int = 64
    max_step_tokens: int = 8192
    chunked_prefill: bool = True
    max_chunk_tokens: int = 0  # the largest prefill chunk of one request in a step; 0: only the step's budget limits it
    block_tokens: int = 16
    kv_pool_tokens: int = 0
    kv_pool_ratio: float = 1.0
    watermark_ratio: float = 0.01
    admission: str = "fifo"
    reserve: str = "none"
    prefix_cache: bool = True
    max_model_len: int = 131_072
    max_waiting: int = 100_000
    accept_oversized: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tensor_parallel: int = 1
    memory_ratio: float = 0.9
    least_step_s: float = 0.0  # on torch: no step takes less, so that a small model stands for a slower device
    kv_layout: str = "paged"
    prefix_evict: str = "lru"
    prefix_cache_ratio: float = 1.0
    batching: str = "continuous"
    scheduling: str = "fifo"
    wait_limit_s: float = 0.0
    ageing_s: float = 60.0
    prefill_step_share: float = 1.0
    prefill_step_seconds: float = 0.0
    max_long_prefills: int = 0
    long_prefill_tokens: int = 4096
    prefill_devices: int = 0
    decode_devices: int = 0
    kv_transfer_bytes_per_s: float = 25e9
    kv_transfer_latency_s: float = 0.001
    rate_limit_per_s: float = 0.0
    rate_limit_burst: int = 0
    max_concurrency: int = 0
    queue_target_s: float = 0.0
    queued_tokens_target_s: float = 0.0
    deadline_rejection: bool = False
    response_cache_entries: int = 0
    weights: str = "dtype"
    quantization_fallback: bool = False
    speculative: str = "none"
    speculative_tokens: int = 4
    speculative_noise: float = 0.0
    speculative_acceptance: float = 0.7  # modelled: chance of each draft token, where those before it were accepted
