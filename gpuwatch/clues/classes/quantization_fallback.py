"""Quantization fallback: a slow kernel serves the quantized weights, since the start and for good.

The engine says so in a warning when it loads the model; on pages it only shows as a step time that never was better.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clue import Clue, counted, not_this, told
from ..sighting import Sighting


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that warned."""
    for seen in s.engines:
        said = seen.notices.get("slow_kernel_fallback")
        if said is None or seen.said("start_failed", "does_not_fit"):
            continue  # an engine that never came up has no slow steps
        method = ", ".join(sorted(said.words.get("method", {}))[:4])
        yield Clue(
            "quantization_fallback",
            seen.subject,
            0.75,
            f"The engine says itself that a slow kernel serves its quantized "
            f"weights{f' ({method})' if method else ''}: every step is "
            "slower than this model needs, until it is started with another kernel or type.",
            said.first_at,
            method.split(", ")[0] if method else "slow_kernel",
            "ticket",
            "speed",
            evidence=(counted("slow_kernel_fallback", said.count), told(seen, "method", method or "not named")),
            ruled_out=(not_this("gpu_throttling", "the kernel is chosen at start; clocks come and go"),),
            named=True,
            look_next="tokens/s at batch 1 against memory bandwidth ÷ bytes of the weights",
        )
