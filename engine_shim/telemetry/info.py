"""What the engine says of itself: the facts that do not move between restarts, and a fingerprint of its arguments."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from ..protection.refusal import ALWAYS
from ..step import STEP_FIELDS

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine and rank. Sizes are in tokens and blocks; `arguments` are the settings it was started with."""

    engine: str
    model: str
    version: str
    kv_total_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_model_len: int
    started_at: float  # unix seconds
    rank: int = 0
    device: str = ""
    gpu_uuid: str = ""
    arguments: dict[str, Scalar] = field(default_factory=dict)
    step_fields: tuple[str, ...] = STEP_FIELDS  # of the engine's step records, in order
    rejection_reasons: tuple[str, ...] = ALWAYS  # for which it may turn requests away

    @property
    def kv_capacity_tokens(self) -> int:
        """Token slots of the KV pool."""
        return self.kv_total_blocks * self.block_tokens

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when any argument does."""
        text = json.dumps(self.arguments, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def limits(self) -> dict[str, int]:
        """The sizes a reader needs to make sense of the step records."""
        return {
            "kv_total_blocks": self.kv_total_blocks,
            "kv_capacity_tokens": self.kv_capacity_tokens,
            "block_tokens": self.block_tokens,
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
        }

    def labels(self) -> dict[str, str]:
        """Everything as strings, for info records and info metrics; arguments as `arg_<name>`."""
        named = {"model": self.model, "version": self.version, "device": self.device, "gpu_uuid": self.gpu_uuid}
        result = {key: value for key, value in named.items() if value}
        result["arguments_fingerprint"] = self.fingerprint
        result["started_at"] = f"{self.started_at:.3f}"
        result.update({key: str(value) for key, value in self.limits().items()})
        result.update({f"arg_{key}": _text(value) for key, value in sorted(self.arguments.items())})
        return result


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
