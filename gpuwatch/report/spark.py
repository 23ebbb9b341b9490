"""Small plots out of characters: eighth blocks, as wide as asked, for terminals and Markdown.

A column shows the highest value in it, because peaks are what one looks for; a column in which nothing is known is a
space, never a low bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int, high: float | None = None) -> str:
    """At most `width` characters. `high` is the value of a full bar (default: the largest known value)."""
    if width <= 0 or not len(values):
        return ""
    columns = _columns(values, width)
    known = [v for v in columns if not math.isnan(v)]
    top = high if high is not None else max(known, default=0.0)
    return "".join(_bar(v, top) for v in columns)


def _columns(values: Sequence[float], width: int) -> list[float]:
    """The peak of each column; fewer columns than asked where there are fewer values."""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [_peak(values[a:b]) for a, b in pairwise(edges)]


def _peak(values: Sequence[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


def _bar(value: float, top: float) -> str:
    if math.isnan(value):
        return " "
    share = value / top if top > 0 else 0.0
    return _BLOCKS[min(max(int(share * len(_BLOCKS)), 0), len(_BLOCKS) - 1)]
