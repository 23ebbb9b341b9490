"""What an engine says of itself, from a VllmConfig: limits, sizes and the arguments that change how it schedules.

Configurations differ from version to version: what is not there is left out. Nothing that could hold a credential is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Fact = str | int | float | bool
_PORT = 8000


def facts_of(config: Any, version: str, command: Sequence[str] = ()) -> dict[str, Fact]:
    """Names as in docs/ring.md: limits plain, arguments as `arg_…`. The first ones matter most.

    `command` is the process's own command line: it alone says the port.
    """
    cache, scheduler, parallel = (
        _part(config, name) for name in ("cache_config", "scheduler_config", "parallel_config")
    )
    model, speculative = _part(config, "model_config"), _part(config, "speculative_config")
    found = {
        "model": _model_name(model),
        "version": version,
        "port": port_of(command),
        "max_num_seqs": _get(scheduler, "max_num_seqs"),
        "kv_total_blocks": kv_blocks(config),
        "block_tokens": _get(cache, "block_size"),
        "kv_capacity_tokens": _get(cache, "kv_cache_size_tokens"),
        "max_model_len": _get(model, "max_model_len"),
        "max_num_batched_tokens": _get(scheduler, "max_num_batched_tokens"),
        "arg_enable_prefix_caching": _get(cache, "enable_prefix_caching"),
        "arg_enable_chunked_prefill": _get(scheduler, "enable_chunked_prefill", "chunked_prefill_enabled"),
        "arg_scheduling_policy": _get(scheduler, "policy"),
        "arg_long_prefill_token_threshold": _get(scheduler, "long_prefill_token_threshold"),
        "arg_async_scheduling": _get(scheduler, "async_scheduling"),
        "arg_cache_dtype": _get(cache, "cache_dtype"),
        "arg_gpu_memory_utilization": _get(cache, "gpu_memory_utilization"),
        "arg_quantization": _get(model, "quantization"),
        "arg_dtype": _get(model, "dtype"),
        "arg_tensor_parallel_size": _get(parallel, "tensor_parallel_size"),
        "arg_pipeline_parallel_size": _get(parallel, "pipeline_parallel_size"),
        "arg_data_parallel_size": _get(parallel, "data_parallel_size"),
        "arg_speculative_method": _get(speculative, "method"),
        "arg_num_speculative_tokens": _get(speculative, "num_speculative_tokens"),
    }
    return {name: fact for name, value in found.items() if (fact := _plain(value)) is not None}


def kv_blocks(config: Any) -> int | None:
    """Blocks of one rank's pool that requests can hold: vLLM shows the sum over ranks, one block of each is its own."""
    total = _get(_part(config, "cache_config"), "num_gpu_blocks")
    if not isinstance(total, int) or total <= 0:
        return None
    blocks = total // ranks_here(config) - 1
    return blocks if blocks > 0 else None


def ranks_here(config: Any) -> int:
    """How many data-parallel ranks this front end serves: all of them, or those of its own machine."""
    parallel = _part(config, "parallel_config")
    if _get(parallel, "data_parallel_rank_local") is not None:
        return 1
    local = bool(_get(parallel, "local_engines_only"))
    ranks = _get(parallel, "data_parallel_size_local" if local else "data_parallel_size")
    return ranks if isinstance(ranks, int) and ranks > 0 else 1


def front_ends(config: Any) -> int:
    """How many API servers share the engine; each hears a part of what happens, so that none can tell the whole."""
    count = _get(_part(config, "parallel_config"), "_api_process_count")
    return count if isinstance(count, int) and count > 0 else 1


def port_of(command: Sequence[str]) -> int | None:
    """The port of `vllm serve` (8000 unless said); None for a program that is not known to serve, or a configuration file."""
    for word, value in zip(command, [*command[1:], ""], strict=True):
        if word == "--port" or word.startswith("--port="):
            digits = value if word == "--port" else word.removeprefix("--port=")
            return int(digits) if digits.isascii() and digits.isdigit() else None
    serves = "serve" in command[1:2] or any(word.endswith("api_server.py") for word in command[:1])
    configured = any(word.split("=")[0] in ("--config", "--uds") for word in command)
    return _PORT if serves and not configured else None


def speculates(config: Any) -> bool:
    """Whether drafts are checked."""
    return _part(config, "speculative_config") is not None


def caches_prefixes(config: Any) -> bool:
    """Whether prefixes are looked up."""
    return _get(_part(config, "cache_config"), "enable_prefix_caching") is True


def _part(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _get(part: Any, *names: str) -> Any:
    """The first of these attributes that is there, None where none is."""
    return next((value for name in names if (value := getattr(part, name, None)) is not None), None)


def _model_name(model: Any) -> Any:
    name = _get(model, "served_model_name", "model")
    return name[0] if isinstance(name, list | tuple) and name else name


def _plain(value: Any) -> Fact | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:200]
