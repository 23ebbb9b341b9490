"""Which combinations of the settings of weights and of speculation make sense. ValueError says what to change."""

from __future__ import annotations

from ..model.quantized.stored import KERNELS, WEIGHT_TYPES
from .keys import EngineKeys

SPECULATIVE = ("none", "ngram")
MOST_DRAFT_TOKENS = 32


def check_compute(settings: EngineKeys) -> None:
    """Everything that concerns how tokens are computed."""
    for key, allowed in (("weights", WEIGHT_TYPES), ("speculative", SPECULATIVE)):
        if getattr(settings, key) not in allowed:
            raise ValueError(f"{key} must be one of {', '.join(allowed)}, not {getattr(settings, key)!r}")
    if settings.quantization_fallback and settings.weights not in KERNELS:
        raise ValueError(
            f'quantization_fallback unpacks quantized weights, and weights = "{settings.weights}" are none; set '
            f"weights to one of {', '.join(KERNELS)}, or remove quantization_fallback"
        )
    if not 1 <= settings.speculative_tokens <= MOST_DRAFT_TOKENS:
        raise ValueError(f"speculative_tokens must be 1 to {MOST_DRAFT_TOKENS}, not {settings.speculative_tokens}")
    for key in ("speculative_noise", "speculative_acceptance"):
        if not 0 <= getattr(settings, key) <= 1:
            raise ValueError(f"{key} must be between 0 and 1, not {getattr(settings, key)}")
    if settings.speculative != "none":
        _check_speculation(settings)


def _check_speculation(settings: EngineKeys) -> None:
    if settings.batching != "continuous":
        raise ValueError('speculative needs batching = "continuous": rows of a static batch move in step')
    if settings.prefill_devices:
        raise ValueError('speculative is not supported with prefill_devices; set speculative = "none"')
    if settings.max_step_tokens < settings.max_num_seqs * (settings.speculative_tokens + 1):
        raise ValueError(
            f"max_step_tokens ({settings.max_step_tokens}) does not hold {settings.speculative_tokens} drafts and a "
            f"token for each of max_num_seqs ({settings.max_num_seqs}); raise it or lower speculative_tokens"
        )
