"""Numbers as logs write them: bounded in length, with their unit turned into ours; NaN, infinity and nonsense are None."""

from __future__ import annotations

import math
import re

_BYTES = {
    "B": 1.0, "bytes": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "TiB": 2.0**40,
}  # fmt: skip
_SECONDS = {"ns": 1e-9, "µs": 1e-6, "μs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,12})?)(ns|µs|μs|us|ms|s|m|h)(?![a-z])")
NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
"""A number as it may stand in a payload: never unbounded, so that no search is."""


def value(text: str) -> float | None:
    """A finite number, thousands separated by commas or not."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def ratio(text: str) -> float | None:
    """A percentage as a ratio; None outside of 0–100."""
    number = value(text)
    return None if number is None or not 0 <= number <= 100.0001 else min(number / 100, 1.0)


def duration_s(text: str) -> float | None:
    """`161.454300714s`, `5.669107ms` or `2m3s` in seconds."""
    parts = _DURATION.findall(text[:64])
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else None


def size_bytes(text: str, unit: str) -> float | None:
    """A size such as (`8.11`, `GiB`) in bytes."""
    number = value(text)
    return None if number is None or unit not in _BYTES else number * _BYTES[unit]


def text_of(number: float) -> str:
    """A number for a detail or a label: six significant digits, whole ones without a point."""
    if abs(number) < 1e15 and number == int(number):
        return str(int(number))
    return f"{number:.6g}"
