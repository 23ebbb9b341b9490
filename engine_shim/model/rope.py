"""Rotary position embedding: the frequencies of a model, stretched as its config.json says.

Pair i of a head's dimensions turns by `inverse_frequencies[i]` radians per position. A model trained on short contexts
is stretched to longer ones by slowing some pairs down: all of them alike (`linear`), the slow ones only (`llama3`), or
with a ramp between fast and slow ones and attention sharpened a little (`yarn`). Formulas as published with the models.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from engine_shim.model.config import LlamaConfig, RopeScaling


def inverse_frequencies(config: LlamaConfig) -> tuple[Tensor, float]:
    """Radians per position of each pair, float32 [head_dim / 2], and what sine and cosine are multiplied by."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, scaling, config), scaling.attention_factor


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Wavelengths beyond the trained context are stretched, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    long_from = scaling.original_max_positions / scaling.low_freq_factor
    short_until = scaling.original_max_positions / scaling.high_freq_factor
    blend = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    stretched = torch.where(wavelength > long_from, plain / scaling.factor, plain)
    between = (wavelength <= long_from) & (wavelength >= short_until)
    return torch.where(between, blended, stretched)


def _yarn(plain: Tensor, scaling: RopeScaling, config: LlamaConfig) -> Tensor:
    """Pairs that turn often within the trained context are kept, those that turn rarely stretched, a ramp between."""

    def pair_turning(turns: float) -> float:
        """The pair, as a fraction of its index, that makes so many turns within the trained context."""
        trained = scaling.original_max_positions
        return config.head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    first = max(math.floor(pair_turning(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_turning(scaling.beta_slow)), config.head_dim - 1)
    width = (last - first) or 0.001
    slowed = ((torch.arange(len(plain)).float() - first) / width).clamp(0, 1)
    return plain / scaling.factor * slowed + plain * (1 - slowed)


class RotaryTable:
    """Cosines and sines by position, computed once for as many positions as have been seen."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies, self._factor = inverse_frequencies(config)
        self._dtype = dtype
        self._device = device
        self._limit = config.max_positions
        self._cosines_and_sines = torch.empty(0, 2, 0)
        self._grow(min(1024, self._limit))

    def __call__(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [rows, 1, head_dim / 2] for `positions` [rows], all of them below `longest`."""
        if longest > len(self._cosines_and_sines):
            self._grow(longest)
        # As an embedding lookup: indexing with a tensor costs several times as much on a CPU.
        rows = F.embedding(positions, self._cosines_and_sines)
        cosines, sines = rows[:, None].chunk(2, dim=-1)
        return cosines, sines

    def _grow(self, positions: int) -> None:
        size = max(positions, 2 * len(self._cosines_and_sines))
        angles = torch.arange(size).float()[:, None] * self._frequencies
        table = torch.cat((angles.cos(), angles.sin()), dim=-1) * self._factor
        self._cosines_and_sines = table.to(self._dtype).to(self._device)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding over the two halves of the last axis, as the published weights expect it."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
