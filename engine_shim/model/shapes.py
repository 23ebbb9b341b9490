"""Model shapes: from a decoder's layout to parameters, bytes and floating-point operations. Pure arithmetic.

A shape is what a Llama-style config.json says; the named ones are the public families that services run. Biases and
norm weights (under 0.1 % of the parameters) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES_PER_VALUE = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
KV_TYPES = ("fp32", "bf16", "fp16", "fp8", "int8")
INT8_SCALE_BYTES = 4  # of each key or value vector of a token and head


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer with grouped-query attention and a gated MLP."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            if getattr(self, field) < 1:
                raise ValueError(f"model shape {self.name}: {field} must be at least 1, not {getattr(self, field)}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model shape {self.name}: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: attention projections and the three matrices of the gated MLP."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_parameters(self) -> int:
        """The output projection onto the vocabulary: used once per sampled token, not once per token."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All weights; the input embedding is a second copy of the output projection unless tied."""
        copies = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_parameters + copies * self.head_parameters

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights on the device."""
        return self.parameters * BYTES_PER_VALUE[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values for one token, over all layers; int8 vectors bear a float32 scale each."""
        vector_bytes = self.head_dim + INT8_SCALE_BYTES if dtype == "int8" else self.head_dim * BYTES_PER_VALUE[dtype]
        return 2 * self.layers * self.kv_heads * vector_bytes

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any]) -> Shape:
        """From the keys of a Llama-style config.json. ValueError names a key that is missing."""
        try:
            heads = int(config["num_attention_heads"])
            return cls(
                name=name,
                layers=int(config["num_hidden_layers"]),
                hidden=int(config["hidden_size"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads", heads)),
                head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
                intermediate=int(config["intermediate_size"]),
                vocab=int(config["vocab_size"]),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as missing:
            raise ValueError(f"model config {name}: key {missing} is missing") from None


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", 4, 128, 4, 2, 32, 384, 256),
        Shape("1b", 16, 2048, 32, 8, 64, 8192, 128_256, tied_embeddings=True),  # Llama 3.2 1B
        Shape("7b", 32, 4096, 32, 8, 128, 14_336, 32_000),  # Mistral 7B
        Shape("8b", 32, 4096, 32, 8, 128, 14_336, 128_256),  # Llama 3 8B
        Shape("13b", 40, 5120, 40, 40, 128, 13_824, 32_000),  # Llama 2 13B: no grouped queries, 6 × the KV of 7b
        Shape("70b", 80, 8192, 64, 8, 128, 28_672, 128_256),  # Llama 3 70B
        Shape("100m", 12, 768, 12, 4, 64, 2048, 32_000, tied_embeddings=True),  # small enough to measure on a CPU
    )
}


def shape_named(name: str) -> Shape:
    """The shape; ValueError lists the known ones."""
    if name not in SHAPES:
        raise ValueError(f"model {name!r} is not a known shape; use one of {', '.join(SHAPES)}")
    return SHAPES[name]
