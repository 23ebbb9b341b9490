"""What a subject says of itself (Info labels), under one vocabulary whatever the source: page, ring or capture.

Engine-supplied strings are untrusted: bounded in number and length, and what looks like a credential is never kept.
Sizes get the catalogue's names and are completed where two of them give the third.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .changes.secrets import HIDDEN, MAX_VALUE_CHARS, looks_secret, safe_text

MAX_LABELS = 64

_RENAMED = {
    "block_tokens": "kv_block_tokens",
    "block_size": "kv_block_tokens",
    "num_gpu_blocks": "kv_total_blocks",
    "model_name": "model",
}


def canonical_facts(labels: Mapping[str, object], ranks: int = 1) -> tuple[dict[str, str], int]:
    """Labels under our names, complete and safe, and how many were cut. `ranks` share an all-ranks block count."""
    facts: dict[str, str] = {}
    cut = max(len(labels) - MAX_LABELS, 0)
    for key, value in list(labels.items())[:MAX_LABELS]:
        text = _text(value)
        if not text or text == "None":
            continue
        name = _RENAMED.get(key, key)[:MAX_VALUE_CHARS]
        if looks_secret(name):
            text = HIDDEN
        cut += len(text) > MAX_VALUE_CHARS
        facts[name] = safe_text(text)
    shared = number(facts.pop("kv_total_blocks_all_ranks", ""))
    if shared > 0 and ranks > 0:
        facts.setdefault("kv_total_blocks", _text(shared // ranks))
    blocks, size = number(facts.get("kv_total_blocks", "")), number(facts.get("kv_block_tokens", ""))
    if blocks > 0 and size > 0:
        facts.setdefault("kv_capacity_tokens", _text(blocks * size))
    return facts, cut


def number(text: str) -> float:
    """A label's value as a number; NaN where it is none."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value)
