"""Fragmentation: how much of the KV pool, and of a CUDA allocator's memory, is taken or free and yet of no use.

Of the KV pool, as ratios 0–1, NaN where the whole is empty:

- internal: token slots of held blocks that hold no token, ÷ slots of held blocks;
- reserved-unused: blocks promised to requests and not written, ÷ blocks written or promised;
- external: 1 − longest run of free blocks ÷ all free blocks that nobody was promised. It is 0 by construction in a
  paged pool, where any free blocks serve, and is not shown there.

Of torch's CUDA caching allocator (the CPU's has no such figures), from torch.cuda.memory_stats and memory_snapshot:

- cache slack: (reserved − allocated) ÷ reserved: an upper bound, cached blocks can be used again;
- stuck: inactive split ÷ reserved: what empty_cache cannot return. Absent with expandable segments, which do not count;
- internal: (allocated − requested) ÷ allocated: rounding;
- external: 1 − largest ÷ all inactive blocks, of the worst pool and stream that has any; 0 where nothing is inactive;
- retries and out-of-memory errors: only where these grow is fragmentation a problem rather than a ratio.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


def internal_ratio(unused_slots_tokens: float, held_blocks: float, block_tokens: int) -> float:
    """Of the slots in held blocks, the share without a token."""
    return unused_slots_tokens / (held_blocks * block_tokens) if held_blocks else math.nan


def reserved_unused_ratio(reserved_blocks: float, used_blocks: float) -> float:
    """Of the blocks that are written or promised, the share that is only promised."""
    taken = reserved_blocks + used_blocks
    return reserved_blocks / taken if taken else math.nan


def external_ratio(largest_free_blocks: float, free_blocks: float) -> float:
    """Of `free_blocks` that nobody was promised, the share that does not lie in the longest run."""
    return 1.0 - largest_free_blocks / free_blocks if free_blocks > 0 else math.nan


# -- torch's CUDA caching allocator -------------------------------------------------------------------------------------

_ALL = "all.current"


def allocator_figures(stats: Mapping[str, int], segments: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The figures from memory_stats() and memory_snapshot(); what cannot be known is left out.

    The cudaMallocAsync backend reports zeros for everything: then nothing is known.
    """
    segments = list(segments)
    reserved, allocated = (stats.get(f"{name}_bytes.{_ALL}", 0) for name in ("reserved", "allocated"))
    if not reserved:
        return {}
    figures = {
        "cache_slack_ratio": (reserved - allocated) / reserved,
        "external_fragmentation_ratio": _worst_external(segments),
        "retries_total": float(stats.get("num_alloc_retries", 0)),
        "ooms_total": float(stats.get("num_ooms", 0)),
    }
    if not any(segment.get("is_expandable") for segment in segments):
        figures["stuck_ratio"] = stats.get(f"inactive_split_bytes.{_ALL}", 0) / reserved
    requested = stats.get(f"requested_bytes.{_ALL}", 0)
    if allocated and requested:
        figures["internal_fragmentation_ratio"] = (allocated - requested) / allocated
    return figures


def _worst_external(segments: Iterable[Mapping[str, Any]]) -> float:
    """Inactive blocks serve requests of their own pool and stream only, so that each is looked at for itself."""
    inactive: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for segment in segments:
        pool = (segment.get("stream"), segment.get("segment_type"), segment.get("segment_pool_id"))
        inactive[pool] += [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
    return max((1.0 - max(sizes) / sum(sizes) for sizes in inactive.values() if sizes), default=0.0)


def cuda_allocator() -> dict[str, float]:
    """The figures of this process's current CUDA device; empty where torch has none. A snapshot takes milliseconds."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return allocator_figures(torch.cuda.memory_stats(), torch.cuda.memory_snapshot())
