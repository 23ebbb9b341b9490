"""Command lines as facts: `--max-num-seqs 64` → `arg_max_num_seqs: 64`, with credentials never kept.

Values of options that are known to be harmless are kept as they are, cleaned; of all others only numbers and flags are,
and of the rest a keyed fingerprint that tells a change and nothing else. Bare words may be anything and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

from ..facts import MAX_LABELS
from .secrets import HIDDEN, is_random, looks_secret, safe_text

_LONGEST_PLAIN = 120
_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,9})?(?:[eE][-+]?\d{1,3})?[kKmMgGbB]{0,3}")
_FLAGS = ("true", "false", "auto", "none", "on", "off", "yes", "no", "null", "default")
_COMPOUND = re.compile(r"[\s{}\[\]=,;\"']")

SHORT_OPTIONS = {
    "-m": "model", "-c": "ctx_size", "-np": "parallel", "-ngl": "n_gpu_layers", "-b": "batch_size", "-ub": "ubatch_size",
    "-t": "threads", "-tb": "threads_batch", "-fa": "flash_attn", "-ctk": "cache_type_k", "-ctv": "cache_type_v",
    "-sm": "split_mode", "-ts": "tensor_split", "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size", "-dcp": "decode_context_parallel_size", "-q": "quantization",
}  # fmt: skip
"""Options that engines know by one or two letters, under their long names."""

PLAIN_OPTIONS = frozenset({
    # what is served, and in which form
    "model", "model_path", "model_id", "model_name", "served_model_name", "tokenizer", "tokenizer_path",
    "tokenizer_mode", "tokenizer_backend", "alias", "revision", "code_revision", "tokenizer_revision", "load_format",
    "model_format", "model_impl", "task", "runner", "convert", "config_format", "dtype", "kv_cache_dtype",
    "quantization", "quantize", "quant_policy", "load_in", "quantization_param_path", "backend", "pytorch_backend",
    # memory and cache
    "kv_cache_memory_bytes", "cpu_offload_gb", "swap_space", "mamba_ssm_cache_dtype", "mamba_cache_dtype",
    "prefix_caching_hash_algo", "cache_type_k", "cache_type_v", "hicache_write_policy", "hicache_io_backend",
    "hicache_mem_layout", "hicache_storage_backend", "hicache_storage_prefetch_policy", "radix_eviction_policy",
    "kv_offloading_backend", "kv_connector", "kv_role", "free_gpu_memory_fraction",
    # scheduling
    "scheduling_policy", "schedule_policy", "scheduler_policy", "capacity_scheduler_policy",
    "context_chunking_policy", "retraction_policy", "load_balance_method", "stream_interval", "scheduler_cls",
    "disaggregation_mode", "disaggregation_transfer_backend", "disaggregation_ib_device", "role",
    # kernels and graphs
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "mm_attention_backend",
    "sampling_backend", "moe_backend", "moe_runner_backend", "moe_a2a_backend", "all2all_backend", "fp8_gemm_backend",
    "fp4_gemm_backend", "grammar_backend", "guided_decoding_backend", "structured_outputs_backend",
    "reasoning_parser", "tool_call_parser", "flash_attn", "split_mode", "tensor_split", "speculative_algorithm",
    "speculative_algo", "speculative_draft_model_path", "speculative_model", "draft_model", "model_draft",
    # placement
    "distributed_executor_backend", "data_parallel_backend", "device", "device_ids", "main_gpu", "numa", "nnodes",
    "node_rank", "dist_init_addr", "data_parallel_address", "data_parallel_hybrid_lb", "nccl_port",
    # front end and telemetry
    "host", "port", "uvicorn_log_level", "log_level", "log_level_http", "otlp_traces_endpoint",
    "collect_detailed_traces", "hostname", "metrics_port", "executor", "platform", "enable_lora", "lora_dtype",
    "lora_target_modules", "lora_backend", "lora_eviction_policy",
})  # fmt: skip
"""Options of vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and LMDeploy whose values are words that say nothing private."""


def argument_facts(command: Sequence[str], key: bytes = b"") -> dict[str, str]:
    """Options of a command line; flags without a value are `true`. At most 64. `key` is that of the fingerprints."""
    facts: dict[str, str] = {}
    words = list(command[1:])
    at = 0
    while at < len(words) and len(facts) < MAX_LABELS:
        name, equals, value = _split(words[at])
        at += 1
        if not name:
            continue
        # The word after a credential's name is never an option, whatever it looks like.
        if not equals and at < len(words) and (looks_secret(name) or not _is_option(words[at])):
            value = words[at]
            at += 1
        elif not equals:
            value = "true"
        if is_random(name) or safe_text(name) != name:
            continue  # a credential in the place of an option
        facts[f"arg_{name}"] = argument_value(name, value, key)
    return facts


def argument_value(name: str, value: str, key: bytes = b"") -> str:
    """What is kept of an option's value. `name` in lower case with underscores."""
    if looks_secret(name):
        return HIDDEN
    if _NUMBER.fullmatch(value) or value.lower() in _FLAGS:
        return value
    is_url = "://" in value
    if name in PLAIN_OPTIONS and len(value) <= _LONGEST_PLAIN and (is_url or not _COMPOUND.search(value)):
        return value if "revision" in name and re.fullmatch(r"[0-9a-f]{40}", value) else safe_text(value)
    return f"#{fingerprint(value, key)}" if safe_text(value) == value else HIDDEN


def fingerprint(text: str, key: bytes = b"") -> str:
    """Eight hexadecimal digits that change with the text. Without the key nobody can try texts against them."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=4, key=key[:64]).hexdigest()


def _split(word: str) -> tuple[str, str, str]:
    """Name, `=` and value of an option; no name where the word is none."""
    option, equals, value = word.partition("=")
    if option in SHORT_OPTIONS:
        return SHORT_OPTIONS[option], equals, value
    if not option.startswith("--") or len(option) < 3:
        return "", "", ""
    return re.sub(r"[^a-z0-9_]", "_", option[2:].lower())[:64], equals, value


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
