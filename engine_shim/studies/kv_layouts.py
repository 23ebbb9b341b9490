"""Where KV memory goes: paging against contiguous runs and reservation of max_tokens, under the same load.

    python -m engine_shim.studies.kv_layouts

A saturated engine with chat-like lengths, of which clients allow 2048 tokens and use a few hundred. Shares are of all
token slots of the pool, averaged over time once the queue has formed. The expectation is the PagedAttention paper's
(arXiv 2309.06180): engines that gave each request one run sized for the most it may produce had tokens in 20–38 % of
their KV memory; paging wastes less than 4 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .played import Played, play_load

ENGINE: dict[str, Any] = {
    "model": "13b", "kv_pool_tokens": 40_000, "max_num_seqs": 256, "prefix_cache": False, "watermark_ratio": 0.0,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "paged, growth on demand": {"kv_layout": "paged", "reserve": "prompt"},
    "paged, max_tokens reserved": {"kv_layout": "paged", "reserve": "max_tokens"},
    "contiguous, growth on demand": {"kv_layout": "contiguous", "reserve": "prompt"},
    "contiguous, max_tokens reserved": {"kv_layout": "contiguous", "reserve": "max_tokens"},
}
LOAD = {
    "rate_per_s": 16.0,
    "prompt_tokens": {"lognormal": 180, "sigma": 0.9, "min": 8, "max": 1500},
    "output_tokens": {"lognormal": 220, "sigma": 0.7, "min": 4, "max": 2000},
    "max_tokens": 2048,
}
WARM_UP_S = 40.0


@dataclass(frozen=True, slots=True)
class Row:
    """What one layout made of the load; the five shares of the pool's slots sum to 1."""

    name: str
    running: float
    tokens_per_s: float
    preemptions_per_s: float
    with_tokens: float
    internal: float
    reserved: float
    external: float  # free, but in no run that is long enough for the head of the queue
    free: float


def measure(name: str, seconds: float, seed: int = 1) -> Row:
    """Play the load against one layout."""
    played = play_load(ENGINE | LAYOUTS[name], [LOAD], seconds=seconds, seed=seed)
    return _row(name, played)


def _row(name: str, played: Played) -> Row:
    steps, size = played.steps, played.settings.block_tokens
    total = steps["kv_total_blocks"]
    internal = steps["kv_slots_unused"] / (total * size)
    used, reserved = steps["kv_used_blocks"] / total, steps["kv_reserved_blocks"] / total
    free = 1.0 - used - reserved
    largest = steps.get("kv_largest_free_blocks", free * total)
    blocked = (steps["waiting"] > 0) & (steps["head_need_blocks"] > largest)
    out_of_reach = np.where(blocked & (steps["head_need_blocks"] <= free * total), free, 0.0)

    def mean(values: np.ndarray) -> float:
        return played.time_mean(values, WARM_UP_S)

    late = steps["begun_at"] >= played.start + WARM_UP_S
    lasted_s = played.seconds - WARM_UP_S
    return Row(
        name=name,
        running=mean(steps["running"]),
        tokens_per_s=_grown(steps["generated_tokens_total"], late) / lasted_s,
        preemptions_per_s=_grown(steps["preempted_total"], late) / lasted_s,
        with_tokens=mean(used - internal),
        internal=mean(internal),
        reserved=mean(reserved),
        external=mean(out_of_reach),
        free=mean(free - out_of_reach),
    )


def _grown(totals: np.ndarray, late: np.ndarray) -> float:
    return float(totals[late][-1] - totals[late][0])


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| KV layout | running | tokens/s | preempted/s | with tokens | unused in blocks | reserved | free, too short "
        "| free |\n|---|---|---|---|---|---|---|---|---|"
    )
    shares = ("with_tokens", "internal", "reserved", "external", "free")
    lines = [
        f"| {r.name} | {r.running:.0f} | {r.tokens_per_s:.0f} | {r.preemptions_per_s:.1f} | "
        + " | ".join(f"{getattr(r, share):.1%}" for share in shares)
        + " |"
        for r in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    print(table([measure(name, seconds=240.0) for name in LAYOUTS]))
