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


def column_plot(values: Sequence[float], width: int, height: int, high: float | None = None) -> list[str]:
    """A plot of `height` lines, top first, each exactly as wide as its columns: eight steps a line.

    `high` is the value of a full column. A column in which nothing is known is blank; a known zero is a thin base.
    """
    if width <= 0 or height <= 0 or not len(values):
        return [""] * max(height, 0)
    columns = _columns(values, width)
    top = high if high is not None else max((v for v in columns if not math.isnan(v)), default=0.0)
    eighths = [_eighths(v, top, height) for v in columns]
    return ["".join(_cell(e, line) for e in eighths) for line in range(height - 1, -1, -1)]


def _eighths(value: float, top: float, height: int) -> int:
    """Height of a column in eighths of a line; −1 where nothing is known, at least 1 for a known value."""
    if math.isnan(value):
        return -1
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return max(round(share * height * 8), 1)


def _cell(eighths: int, line: int) -> str:
    inside = min(eighths - line * 8, 8)
    return _BLOCKS[inside - 1] if inside > 0 else " "


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
