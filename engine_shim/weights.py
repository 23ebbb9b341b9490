"""Where weights come from: seeded random ones for any shape, or a local folder in the Hugging Face layout.

A folder has config.json (`LlamaForCausalLM`) and *.safetensors, optionally tokenizer.json. Nothing is downloaded and no
code of the folder is run. Errors are ValueErrors that name the file and the key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine_shim.llama import LayerWeights, Llama, LlamaWeights
from engine_shim.llama_config import LlamaConfig, read_config


def seeded(config: LlamaConfig, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """A model of any shape with normally distributed weights; variance is kept from layer to layer."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator)
        return values.mul_(columns**-0.5).to(device=device, dtype=dtype)

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
