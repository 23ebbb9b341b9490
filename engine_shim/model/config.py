"""The shape of a Llama-style decoder, from a named shape or from a folder's config.json. Needs no torch.

Families: Llama, Mistral (without a sliding window), Qwen2 (biases on queries, keys and values) and Qwen3 (norms on
each head's query and key). Reading is strict: a model that would be computed wrongly is a ValueError that names the
file and the key.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_shim.model.shapes import Shape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary wavelengths are stretched beyond the context that the model was trained with (rope.py).

    `kind` is linear, llama3 or yarn; the frequency factors belong to llama3, the betas and `attention_factor` to yarn.
    """

    kind: str
    factor: float
    original_max_positions: int = 0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a model. Sizes are element counts, positions are tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    max_positions: int = 131_072
    tied_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    head_norms: bool = False  # RMSNorm over each head's query and key, before they are rotated

    @property
    def qkv_size(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def config_of(shape: Shape, max_positions: int = 131_072) -> LlamaConfig:
    """The decoder of a named shape; its rotary embedding is Llama 2's, as a shape does not say."""
    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_positions=max_positions,
        tied_embeddings=shape.tied_embeddings,
    )


def shape_of(config: LlamaConfig, name: str) -> Shape:
    """What the settings and the modelled devices need to know of `config`."""
    return Shape(
        name=name,
        layers=config.layers,
        hidden=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        tied_embeddings=config.tied_embeddings,
    )


def read_config(path: Path) -> LlamaConfig:
    """A config.json as the model's shape; ValueError with the key for what is missing or not supported."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: not a JSON object")
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{path}: model_type is {family!r}; {', '.join(FAMILIES)} are supported")
    _refuse_unsupported(raw, path)
    heads, hidden = _count(raw, "num_attention_heads", path), _count(raw, "hidden_size", path)
    kv_heads = _count(raw, "num_key_value_heads", path, heads)
    if heads % kv_heads:
        raise ValueError(f"{path}: num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    # Newer files say rope_parameters, older ones rope_theta beside rope_scaling.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    max_positions = _count(raw, "max_position_embeddings", path, 2048)
    biased = bool(raw.get("attention_bias", False))
    if not isinstance(rope, dict):
        raise ValueError(f"{path}: rope_parameters and rope_scaling must be objects")
    return LlamaConfig(
        vocab_size=_count(raw, "vocab_size", path),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size", path),
        layers=_count(raw, "num_hidden_layers", path),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(raw, "head_dim", path, 128 if family == "qwen3" else hidden // heads),
        rms_eps=_number(raw, "rms_norm_eps", path, 1e-6),
        rope_theta=_number(rope, "rope_theta", path, _number(raw, "rope_theta", path, 10_000.0)),
        rope_scaling=_scaling(rope, path, max_positions),
        max_positions=max_positions,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_eos(raw.get("eos_token_id"), path),
        qkv_bias=biased or family == "qwen2",
        output_bias=biased and family != "qwen2",
        mlp_bias=bool(raw.get("mlp_bias", False)),
        head_norms=family == "qwen3",
    )


def _refuse_unsupported(raw: dict[str, Any], path: Path) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported")
    if raw.get("quantization_config"):
        raise ValueError(f"{path}: quantization_config is not supported; use weights in fp32, bf16 or fp16")
    windowed = raw.get("use_sliding_window", raw.get("model_type") == "mistral")
    if windowed and raw.get("sliding_window"):
        raise ValueError(f"{path}: sliding_window is not supported")
    others = {kind for kind in raw.get("layer_types") or [] if kind != "full_attention"}
    if others:
        raise ValueError(f"{path}: layer_types {', '.join(sorted(map(str, others)))} are not supported")


def _count(raw: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key} must be a positive integer, not {value!r}")
    return value


def _number(raw: dict[str, Any], key: str, path: Path, default: float) -> float:
    value = raw.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{path}: {key} must be a positive number, not {value!r}")
    return float(value)


def _eos(value: object, path: Path) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ValueError(f"{path}: eos_token_id must be an integer or a list of them, not {value!r}")
    return tuple(ids)


def _scaling(rope: dict[str, Any], path: Path, max_positions: int) -> RopeScaling | None:
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{path}: partial_rotary_factor is not supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _SCALING_NEEDS:
        raise ValueError(f"{path}: rope scaling {kind!r} is not supported ({', '.join(_SCALING_NEEDS)} are)")
    for key in _SCALING_NEEDS[kind]:
        if not isinstance(rope.get(key), int | float):
            raise ValueError(f"{path}: {kind} rope scaling lacks the number {key}")
    if kind == "yarn" and (rope.get("mscale") or rope.get("truncate") is False):
        raise ValueError(f"{path}: yarn rope scaling with mscale or without truncate is not supported")
    factor = float(rope["factor"])
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_positions=int(rope.get("original_max_position_embeddings") or max_positions),
        low_freq_factor=float(rope.get("low_freq_factor", 0)),
        high_freq_factor=float(rope.get("high_freq_factor", 0)),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        attention_factor=float(rope.get("attention_factor") or (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)),
    )


_SCALING_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
