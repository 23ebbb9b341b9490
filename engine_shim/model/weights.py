"""Where weights come from: seeded random ones for any shape, or a local folder in the Hugging Face layout.

Errors are ValueErrors that name the file and the key. See safetensors_folder.py for what a folder holds.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine_shim.model.config import LlamaConfig, read_config
from engine_shim.model.llama import LayerWeights, Llama, LlamaWeights, Storage
from engine_shim.model.safetensors_folder import SafetensorsFolder


def seeded(
    config: LlamaConfig,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    storage: Storage | None = None,
) -> Llama:
    """A model of any shape with normally distributed weights; variance is kept from layer to layer."""
    return Llama(config, seeded_weights(config, seed, dtype, device), storage)


def seeded_weights(
    config: LlamaConfig, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LlamaWeights:
    """The weights of `seeded`: the same for the same shape and seed."""
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
    return LlamaWeights(embedding, layers, ones(), head)


def load_folder(
    folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu", storage: Storage | None = None
) -> Llama:
    """The model in `folder`. ValueError with file and key for whatever is missing, misshapen or not supported."""
    config = read_config(folder / "config.json")
    return Llama(config, _Reader(SafetensorsFolder(folder), config, dtype, device).weights(), storage)


class _Reader:
    """Puts the tensors of a folder together as the decoder wants them, under the names that checkpoints use."""

    def __init__(self, folder: SafetensorsFolder, config: LlamaConfig, dtype: torch.dtype, device: str) -> None:
        self._folder = folder
        self._config = config
        self._dtype = dtype
        self._device = device

    def weights(self) -> LlamaWeights:
        """All of them."""
        config, hidden = self._config, self._config.hidden_size
        embedding = self._take("model.embed_tokens.weight", config.vocab_size, hidden)
        head = embedding if config.tied_embeddings else self._take("lm_head.weight", config.vocab_size, hidden)
        layers = [self._layer(f"model.layers.{index}.") for index in range(config.layers)]
        return LlamaWeights(embedding, layers, self._take("model.norm.weight", hidden), head)

    def _layer(self, prefix: str) -> LayerWeights:
        config, hidden, inner = self._config, self._config.hidden_size, self._config.intermediate_size
        query_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [(f"{attention}{name}_proj", size) for name, size in (("q", query_size), ("k", kv_size), ("v", kv_size))]
        gate_up = [(f"{mlp}{name}_proj", inner) for name in ("gate", "up")]
        output, down = [(attention + "o_proj", hidden)], [(mlp + "down_proj", hidden)]
        head_norm = config.head_dim if config.head_norms else 0
        return LayerWeights(
            attention_norm=self._take(prefix + "input_layernorm.weight", hidden),
            qkv=self._matrices(qkv, hidden),
            output=self._matrices(output, query_size),
            mlp_norm=self._take(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self._matrices(gate_up, hidden),
            down=self._matrices(down, inner),
            qkv_bias=self._biases(qkv, config.qkv_bias),
            output_bias=self._biases(output, config.output_bias),
            gate_up_bias=self._biases(gate_up, config.mlp_bias),
            down_bias=self._biases(down, config.mlp_bias),
            query_norm=self._take(attention + "q_norm.weight", head_norm) if head_norm else None,
            key_norm=self._take(attention + "k_norm.weight", head_norm) if head_norm else None,
        )

    def _matrices(self, parts: list[tuple[str, int]], columns: int) -> Tensor:
        """Projections of the same input as one matrix; `parts` are names and their numbers of rows."""
        matrices = [self._take(f"{name}.weight", rows, columns) for name, rows in parts]
        return matrices[0] if len(matrices) == 1 else torch.cat(matrices)

    def _biases(self, parts: list[tuple[str, int]], present: bool) -> Tensor | None:
        return torch.cat([self._take(f"{name}.bias", rows) for name, rows in parts]) if present else None

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._folder.take(name, shape).to(device=self._device, dtype=self._dtype)
