"""Where weights come from: a tiny seeded model, or a local folder in the Hugging Face layout.

A folder has config.json (`LlamaForCausalLM`) and *.safetensors, optionally tokenizer.json. Nothing is downloaded and no
code of the folder is run. Errors are ValueErrors that name the file and the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .llama import LayerWeights, Llama, LlamaConfig, LlamaWeights, RopeScaling

# A decode step of sixteen sequences takes a few milliseconds on one CPU core; 256 is the vocabulary of CharTokenizer.
TINY = LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=384, layers=4, heads=4, kv_heads=2, head_dim=32,
    tied_embeddings=False,
)  # fmt: skip


def tiny(seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """The default model: random weights, the same for the same seed."""
    return seeded(TINY, seed, dtype, device)


def seeded(config: LlamaConfig, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """A model of any shape with normally distributed weights; variance is kept from layer to layer."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator) * columns**-0.5
        return values.to(device=device, dtype=dtype)

    def ones() -> Tensor:
        return torch.ones(config.hidden_size, device=device, dtype=dtype)

    layers = [
        LayerWeights(
            attention_norm=ones(),
            qkv=matrix(config.qkv_size, config.hidden_size),
            output=matrix(config.hidden_size, config.heads * config.head_dim),
            mlp_norm=ones(),
            gate_up=matrix(2 * config.intermediate_size, config.hidden_size),
            down=matrix(config.hidden_size, config.intermediate_size),
        )
        for _ in range(config.layers)
    ]
    embedding = matrix(config.vocab_size, config.hidden_size)
    # Tied, a random model repeats its last token for ever; its own head makes the text wander.
    head = embedding if config.tied_embeddings else matrix(config.vocab_size, config.hidden_size)
    return Llama(config, LlamaWeights(embedding, layers, ones(), head))


def load_folder(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """The Llama in `folder`. ValueError with file and key for whatever is missing, misshapen or not a plain Llama."""
    config = read_config(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: no *.safetensors file")
    tensors = _read_tensors(files)

    def take(name: str, rows: int, columns: int | None = None) -> Tensor:
        shape = (rows,) if columns is None else (rows, columns)
        if name not in tensors:
            raise ValueError(f"{folder}: no tensor {name}")
        tensor = tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{folder}: tensor {name} is {tuple(tensor.shape)}, config.json asks for {shape}")
        return tensor.to(device=device, dtype=dtype)

    hidden = config.hidden_size
    embedding = take("model.embed_tokens.weight", config.vocab_size, hidden)
    head = embedding if config.tied_embeddings else take("lm_head.weight", config.vocab_size, hidden)
    layers = [_layer(take, config, f"model.layers.{index}.") for index in range(config.layers)]
    return Llama(config, LlamaWeights(embedding, layers, take("model.norm.weight", hidden), head))


def _layer(take: Callable[..., Tensor], config: LlamaConfig, prefix: str) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    projections = (("q_proj", query_size), ("k_proj", kv_size), ("v_proj", kv_size))
    return LayerWeights(
        attention_norm=take(prefix + "input_layernorm.weight", hidden),
        qkv=torch.cat([take(f"{attention}{name}.weight", size, hidden) for name, size in projections]),
        output=take(attention + "o_proj.weight", hidden, query_size),
        mlp_norm=take(prefix + "post_attention_layernorm.weight", hidden),
        gate_up=torch.cat([take(f"{mlp}{name}.weight", inner, hidden) for name in ("gate_proj", "up_proj")]),
        down=take(mlp + "down_proj.weight", hidden, inner),
    )


def _read_tensors(files: list[Path]) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file}: {error}") from error
    return tensors


def read_config(path: Path) -> LlamaConfig:
    """A config.json as the model's shape; ValueError with the key for what is missing or not supported."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: not a JSON object")
    if raw.get("model_type") != "llama":
        raise ValueError(f"{path}: model_type is {raw.get('model_type')!r}, only 'llama' is supported")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ValueError(f"{path}: {key} is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported")
    heads, hidden = _count(raw, "num_attention_heads", path), _count(raw, "hidden_size", path)
    # Newer files say rope_parameters, older ones rope_theta beside rope_scaling.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return LlamaConfig(
        vocab_size=_count(raw, "vocab_size", path),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size", path),
        layers=_count(raw, "num_hidden_layers", path),
        heads=heads,
        kv_heads=_count(raw, "num_key_value_heads", path, heads),
        head_dim=_count(raw, "head_dim", path, hidden // heads),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10_000.0))),
        rope_scaling=_scaling(rope, path),
        max_positions=_count(raw, "max_position_embeddings", path, 2048),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_eos(raw.get("eos_token_id"), path),
    )


def _count(raw: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key} must be a positive integer, not {value!r}")
    return value


def _eos(value: object, path: Path) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ValueError(f"{path}: eos_token_id must be an integer or a list of them, not {value!r}")
    return tuple(ids)


def _scaling(rope: dict[str, Any], path: Path) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"{path}: rope scaling {kind!r} is not supported (default and llama3 are)")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [key for key in keys if not isinstance(rope.get(key), int | float)]
    if missing:
        raise ValueError(f"{path}: llama3 rope scaling lacks the number {missing[0]}")
    return RopeScaling(*(float(rope[key]) for key in keys[:3]), original_max_positions=int(rope[keys[3]]))
