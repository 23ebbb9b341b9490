"""Times as people and programs write them: unix seconds (or ms, µs, ns), ISO 8601, `now`, `-2h`, `+60 s`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_UNITS_S = {
    "": 1.0,
    "s": 1.0,
    "sec": 1.0,
    "ms": 1e-3,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_EARLIEST = 946_684_800.0  # the year 2000: what lies before is not unix seconds
_LATEST = 7_258_118_400.0  # the year 2200


def unix_seconds(text: str) -> float:
    """A time stamp as unix seconds; NaN for what is none. An ISO time without an offset is taken as UTC."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        return _iso(text)
    for factor in (1.0, 1e-3, 1e-6, 1e-9):
        if _EARLIEST <= value * factor <= _LATEST:
            return value * factor
    return math.nan


def span_seconds(text: str) -> float:
    """`90`, `60 s`, `2h`, `1h30m` as seconds; NaN for what is none."""
    rest = text.strip()
    total, seen = 0.0, False
    while rest:
        found = _SPAN.match(rest)
        unit = _UNITS_S.get(found[2].lower()) if found else None
        if found is None or unit is None:
            return math.nan
        total, seen = total + float(found[1]) * unit, True
        rest = rest[found.end() :].lstrip()
    return total if seen else math.nan


def point_in_time(text: str, now: float) -> float:
    """`now`, `-2h`, `now-15m`, unix seconds or ISO 8601. ValueError with what is understood."""
    words = text.strip()
    relative = words.removeprefix("now").strip()
    if words == "now":
        return now
    if relative.startswith("-"):
        back_s = span_seconds(relative[1:])
        if back_s == back_s:
            return now - back_s
    at = unix_seconds(words)
    if at != at:
        raise ValueError(f"{text!r} is no time: now, -2h, now-15m, unix seconds or ISO 8601 are understood")
    return at


def _iso(text: str) -> float:
    try:
        at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return math.nan
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
