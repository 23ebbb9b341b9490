"""What each engine says of itself over HTTP beside its page: version, model, limits. Asked once after a start.

Only fields that are listed are ever kept: an answer may hold the whole command line, keys included.
"""

from __future__ import annotations

import msgspec


class Asked(msgspec.Struct, frozen=True):
    """A path that answers JSON. `fields`: theirs (dots lead inside) → ours; a name that begins with `arg_` is an option's."""

    path: str
    fields: dict[str, str]


_SGLANG = {
    "version": "version",
    "model_path": "model",
    "max_running_requests": "max_num_seqs",
    "max_total_num_tokens": "kv_capacity_tokens",
    "page_size": "kv_block_tokens",
    **{
        name: f"arg_{name}"
        for name in (
            "served_model_name", "dtype", "quantization", "kv_cache_dtype", "context_length", "mem_fraction_static",
            "chunked_prefill_size", "max_prefill_tokens", "max_queued_requests", "schedule_policy", "schedule_conservativeness",
            "retraction_policy", "tp_size", "pp_size", "dp_size", "ep_size", "attention_backend", "sampling_backend",
            "grammar_backend", "disaggregation_mode", "disaggregation_transfer_backend", "speculative_algorithm",
            "speculative_num_steps", "disable_radix_cache", "disable_cuda_graph", "enable_mixed_chunk",
            "enable_hierarchical_cache", "hicache_ratio", "stream_interval", "decode_log_interval", "cuda_graph_max_bs",
            "enable_lora", "max_loras_per_batch",
        )
    },
}  # fmt: skip

ABOUT: dict[str, tuple[Asked, ...]] = {
    "vllm": (Asked("/version", {"version": "version"}),),
    "sglang": (Asked("/server_info", _SGLANG), Asked("/get_server_info", _SGLANG)),
    "trtllm": (Asked("/version", {"version": "version"}),),
    "tgi": (
        Asked(
            "/info",
            {
                "version": "version", "model_id": "model", "model_sha": "model_version", "model_dtype": "arg_dtype",
                "max_concurrent_requests": "arg_max_concurrent_requests", "max_input_tokens": "arg_max_input_tokens",
                "max_total_tokens": "max_model_len", "max_batch_total_tokens": "kv_capacity_tokens",
                "validation_workers": "arg_validation_workers",
            },
        ),
    ),
    "llamacpp": (
        Asked(
            "/props",
            {
                "build_info": "version", "model_path": "model", "total_slots": "max_num_seqs",
                "default_generation_settings.n_ctx": "arg_ctx_size",
            },
        ),
    ),
}  # fmt: skip
"""By dialect: the first path that answers is believed."""

ADAPTERS = {"vllm": "/v1/models", "sglang": "/v1/models"}
"""Where loaded adapters are listed beside the model: entries that name a `parent`."""
