"""trtllm-serve's list of iterations at /metrics: JSON that each reader empties for every other, so it is read once.

What it holds is the state after each of the last iterations; the newest is taken, under the catalogue's names. Numbers
come with no time that could be trusted (local time without a zone), so they stand for the moment of reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

_NAMES: dict[str, tuple[str, float]] = {
    "numActiveRequests": ("req_running", 1.0),
    "numQueuedRequests": ("req_waiting", 1.0),
    "maxNumActiveRequests": ("max_num_seqs", 1.0),
    "iter": ("steps_total", 1.0),
    "iterLatencyMS": ("step_seconds", 1e-3),
    "kvCacheStats.maxNumBlocks": ("kv_total_blocks", 1.0),
    "kvCacheStats.usedNumBlocks": ("kv_used_blocks", 1.0),
    "kvCacheStats.tokensPerBlock": ("kv_block_tokens", 1.0),
    "kvCacheStats.cacheHitRate": ("prefix_hit_ratio", 1.0),
    "inflightBatchingStats.numPausedRequests": ("req_paused", 1.0),
    "inflightBatchingStats.numCtxTokens": ("step_prefill_tokens", 1.0),
    "inflightBatchingStats.numGenRequests": ("step_decode_tokens", 1.0),
}
"""Their path → our name and the factor to our unit. A decoding request is one token of a step."""


def is_list(body: bytes) -> bool:
    """Whether an answer is such a list rather than a page."""
    return body.lstrip()[:1] == b"["


def newest(body: bytes) -> dict[str, float]:
    """Signals after the newest iteration; empty where nothing ran or another reader was there before."""
    try:
        rows = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    row = rows[-1] if isinstance(rows, list) and rows else None
    if not isinstance(row, dict):
        return {}
    found = {
        name: number * factor for path, (name, factor) in _NAMES.items() if not math.isnan(number := _at(row, path))
    }
    if found.get("kv_total_blocks"):
        found["kv_usage_ratio"] = found.get("kv_used_blocks", math.nan) / found["kv_total_blocks"]
        found["kv_capacity_tokens"] = found["kv_total_blocks"] * found.get("kv_block_tokens", math.nan)
    return found


def _at(row: Mapping[str, Any], path: str) -> float:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
