"""Who holds the cache and who blocks the queue: salted ids with their share, from the live request table."""

from __future__ import annotations

import math

import numpy as np

from ..memory.view import Window
from ..model import Culprit, Missing

WAITING = (1.0, 4.0)


def holders(w: Window, n: int = 3) -> tuple[Culprit, ...]:
    """The n requests that hold most KV, with their share of what is held; nothing without a live table."""
    try:
        live = w.live
    except Missing:
        return ()
    held = live.blocks
    used = max(float(held.sum()), w.level("kv_used_blocks") if w.has("kv_used_blocks") else 0.0)
    if used <= 0:
        return ()
    top = np.argsort(-held, kind="stable")[:n]
    return tuple(
        Culprit(
            "request",
            f"{int(live.request[i]):016x}",
            float(held[i]) / used,
            f"holds {held[i]:.0f} blocks, prompt {live.prompt_tokens[i]:.0f} tokens",
        )
        for i in top
        if held[i] > 0
    )


def head(w: Window) -> tuple[Culprit, ...]:
    """The request at the head of the queue, with the share of the pool that it needs; nothing without a live table."""
    try:
        live, block_tokens, total = w.live, w.limit("kv_block_tokens"), w.level("kv_total_blocks")
    except Missing:
        return ()
    waiting = np.flatnonzero(np.isin(live.stage, WAITING))
    if not len(waiting) or total <= 0:
        return ()
    first = waiting[np.argmin(live.arrived_at[waiting])]
    tokens = float(live.prompt_tokens[first] + live.generated_tokens[first])
    need = math.ceil(tokens / block_tokens)
    return (
        Culprit(
            "request",
            f"{int(live.request[first]):016x}",
            min(1.0, need / total),
            f"head of the queue: {tokens:.0f} tokens need {need} of {total:.0f} blocks",
        ),
    )
