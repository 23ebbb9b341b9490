"""Engine settings: the knobs of scheduler, KV pool and model, checked before anything starts.

A wrong value ends with a ValueError that names the key and says what to change. Sizes are in tokens, requests or ratios
as the names say; the keys are those of a scenario's [engine] table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..devices.profiles import Device
from ..model.quantized.stored import model_bytes
from ..model.shapes import BYTES_PER_VALUE, KV_TYPES, Shape, shape_named
from .compute import check_compute
from .keys import EngineKeys
from .policies import check_policies
from .protection import check_protection

ADMISSION = ("fifo", "bypass")
RESERVE = ("none", "prompt", "max_tokens")
KV_LAYOUT = ("paged", "contiguous")
PREFIX_EVICT = ("lru", "fifo")
# Left free on the device for activations, graphs and the allocator's slack, on top of `memory_ratio`.
WORKSPACE_BYTES = 1e9


@dataclass(frozen=True)
class EngineSettings(EngineKeys):
    """The keys, checked when they are put together."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_ranges()
        self._check_combinations()
        check_policies(self)
        check_protection(self)
        check_compute(self)

    def _check_types(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is float and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif type(value) is not kind:
                raise ValueError(f"{field.name} must be {_KINDS[kind]}, not {value!r}")

    def _check_ranges(self) -> None:
        for key in (
            "max_num_seqs",
            "max_step_tokens",
            "block_tokens",
            "max_model_len",
            "max_waiting",
            "tensor_parallel",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")
        for key in ("kv_pool_tokens", "max_chunk_tokens"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must not be negative; 0 means unset")
        if not 0 <= self.watermark_ratio < 1:
            raise ValueError(f"watermark_ratio must be at least 0 and below 1, not {self.watermark_ratio}")
        if not 0 <= self.least_step_s <= 10:
            raise ValueError(f"least_step_s must be between 0 and 10 seconds, not {self.least_step_s}")
        for key in ("kv_pool_ratio", "memory_ratio"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"{key} must be above 0 and at most 1, not {getattr(self, key)}")
        if not 0 <= self.prefix_cache_ratio <= 1:
            raise ValueError(f"prefix_cache_ratio must be between 0 and 1, not {self.prefix_cache_ratio}")
        choices = {
            "admission": ADMISSION, "reserve": RESERVE, "dtype": BYTES_PER_VALUE, "kv_dtype": KV_TYPES,
            "kv_layout": KV_LAYOUT, "prefix_evict": PREFIX_EVICT,
        }  # fmt: skip
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key} must be one of {', '.join(allowed)}, not {getattr(self, key)!r}")
        shape_named(self.model)

    def _check_combinations(self) -> None:
        if self.max_step_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_num_seqs ({self.max_num_seqs}): a step could "
                "not hold one token for each running request; raise max_step_tokens or lower max_num_seqs"
            )
        if self.kv_pool_tokens and self.kv_pool_tokens < self.block_tokens:
            raise ValueError(
                f"kv_pool_tokens ({self.kv_pool_tokens}) is below one block; raise it to {self.block_tokens}"
            )
        if left := self.kv_pool_tokens % self.block_tokens:
            near = f"{self.kv_pool_tokens - left} or {self.kv_pool_tokens - left + self.block_tokens}"
            raise ValueError(
                f"block_tokens ({self.block_tokens}) does not divide kv_pool_tokens ({self.kv_pool_tokens}); use {near}"
            )
        if self.max_chunk_tokens and not self.chunked_prefill:
            raise ValueError(
                "max_chunk_tokens has no meaning without chunked_prefill; remove it or set chunked_prefill"
            )
        if self.kv_layout == "contiguous" and self.prefix_cache:
            raise ValueError(
                'kv_layout = "contiguous" gives each request one run of blocks, so no prefix can be shared; set '
                "prefix_cache = false"
            )
        if self.shape.kv_heads % self.tensor_parallel:
            raise ValueError(f"tensor_parallel must divide the {self.shape.kv_heads} KV heads of model {self.model}")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> EngineSettings:
        """From a parsed [engine] table; unknown keys raise ValueError with the nearest known one."""
        return EngineSettings().replaced(table)

    def replaced(self, changes: Mapping[str, Any]) -> EngineSettings:
        """A copy with some keys changed, checked again."""
        known = [field.name for field in fields(self)]
        for key in changes:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise ValueError(f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return replace(self, **changes)

    def arguments(self) -> dict[str, Any]:
        """What the engine says it was started with; keys newer than _ALWAYS_SAID only where they were changed.

        So a key that is added later does not change the fingerprint of an engine that does not use it.
        """
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value for name, value in said.items() if name in _ALWAYS_SAID or value != getattr(type(self), name)
        }

    def check_longest_fits(self, blocks: int) -> None:
        """ValueError if a request of max_model_len tokens cannot fit into a pool of so many blocks."""
        pool_tokens = blocks * self.block_tokens
        if self.max_model_len > pool_tokens and not self.accept_oversized:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) is more than the KV pool of {pool_tokens} tokens holds, so the "
                "longest request could never be served; lower it, or raise kv_pool_tokens or kv_pool_ratio"
            )

    @property
    def shape(self) -> Shape:
        """The model's shape."""
        return shape_named(self.model)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all GPUs of the engine."""
        return self.shape.kv_bytes_per_token(self.kv_dtype)

    def pool_blocks(self, device: Device | None = None) -> int:
        """Blocks in the KV pool: `kv_pool_tokens`, or the share `kv_pool_ratio` of what `device` has room for.

        ValueError if the device has less room than that.
        """
        if device is None:
            if not self.kv_pool_tokens:
                raise ValueError("kv_pool_tokens must be set where there is no modelled device to derive the pool from")
            return self.kv_pool_tokens // self.block_tokens
        room = room_tokens(self, device)
        if self.kv_pool_tokens > room:
            raise ValueError(
                f"kv_pool_tokens ({self.kv_pool_tokens}) is more than {self.tensor_parallel} × {device.name} has room "
                f"for ({room}); lower it, or set kv_pool_ratio instead"
            )
        blocks = (self.kv_pool_tokens or int(self.kv_pool_ratio * room)) // self.block_tokens
        if blocks < 1:
            raise ValueError(f"kv_pool_ratio ({self.kv_pool_ratio}) leaves no block on {device.name}; raise it")
        return blocks


_ALWAYS_SAID = frozenset(
    {
        "model", "max_num_seqs", "max_step_tokens", "chunked_prefill", "max_chunk_tokens", "block_tokens",
        "kv_pool_tokens", "kv_pool_ratio", "watermark_ratio", "admission", "reserve", "prefix_cache", "max_model_len",
        "max_waiting", "accept_oversized", "dtype", "kv_dtype", "tensor_parallel", "memory_ratio", "least_step_s",
    }
)  # fmt: skip
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def room_tokens(settings: EngineSettings, device: Device) -> int:
    """Tokens of KV that fit on the engine's GPUs beside weights and workspace. ValueError if the weights do not fit."""
    gpus = settings.tensor_parallel
    weights = model_bytes(settings.shape, settings.weights, settings.dtype)
    room = gpus * (device.memory_bytes * settings.memory_ratio - WORKSPACE_BYTES) - weights
    if room < settings.block_tokens * settings.kv_bytes_per_token:
        raise ValueError(
            f"model {settings.model} in {settings.dtype} needs {weights / 1e9:.0f} GB of weights, which leaves no room "
            f"for KV on {gpus} × {device.name}; raise tensor_parallel, choose a smaller dtype or another device"
        )
    return int(room // settings.kv_bytes_per_token)
