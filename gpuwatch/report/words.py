"""Numbers, units and times as people read them. Base units in, short text out; what is not known is an en dash."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from ..catalog import CATALOG

UNKNOWN = "–"
_SPELLED = {"kv": "KV", "gpu": "GPU", "cpu": "CPU", "ttft": "TTFT", "itl": "ITL", "sm": "SM", "dram": "DRAM"}
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIX_UNITS = (
    ("_per_s", "per_second"),
    ("_per_minute", "per_minute"),
    ("_ratio", "ratio"),
    ("_share", "ratio"),
    ("_seconds", "seconds"),
    ("_s", "seconds"),
    ("_bytes", "bytes"),
    ("_hertz", "hertz"),
    ("_watts", "watts"),
    ("_celsius", "celsius"),
    ("_tokens", "tokens"),
)


def plain(value: float | None) -> str:
    """At most three significant digits, thousands grouped: 0.0312, 12.5, 1,250, 24,000."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    sign = "−" if value < 0 else ""
    size = abs(value)
    if size >= 1000:
        return f"{sign}{float(f'{size:.3g}'):,.0f}"
    text = f"{size:.3g}"
    return sign + (f"{size:.6f}".rstrip("0") if "e" in text else text)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage; 0.9996 does not become 100 %."""
    if ratio is None or math.isnan(ratio):
        return UNKNOWN
    value = ratio * 100.0
    if not math.isfinite(value):
        return f"{plain(value)} %"
    digits = 0 if value == round(value) or 10 <= value < 99 else 1
    text = f"{value:.{digits}f}"
    if text in {"100.0", "100"} and value < 100:
        text = "> 99.9"
    return f"{text.removesuffix('.0')} %"


def duration(seconds: float | None) -> str:
    """A span of time: 340 ms, 12.4 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    sign, size = ("−" if seconds < 0 else ""), abs(seconds)
    if size < 1:
        return f"{sign}{size * 1000:.3g} ms" if size else "0 s"
    if size < 99.5:
        return f"{sign}{float(f'{size:.3g}'):g} s"
    whole = round(size)
    for unit_s, unit, below_s, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{sign}{whole // unit_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{sign}{whole} s"


def utc(at: float | None) -> str:
    """Time of day: 18:04:31 UTC."""
    if at is None or not math.isfinite(at):
        return UNKNOWN
    return f"{datetime.fromtimestamp(round(at), UTC):%H:%M:%S} UTC"


def utc_date(at: float) -> str:
    """Date and time of day: 29 November 2026, 18:04 UTC."""
    moment = datetime.fromtimestamp(round(at), UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def since(at: float, zero: float) -> str:
    """`at` relative to `zero`, always with its sign: +1 min 12 s, −8 s, ±0 s."""
    delta = float(round(at - zero))
    if delta == 0:
        return "±0 s"
    return duration(delta) if delta < 0 else f"+{duration(delta)}"


def unit_of(signal: str) -> str:
    """The unit of a signal: the catalogue's, or what a derived name says (`_s`, `(seconds)`, …), or ""."""
    known = CATALOG.get(signal)
    if known is not None:
        return known.unit
    if signal.startswith("seconds "):
        return "seconds"
    for suffix, unit in _SUFFIX_UNITS:
        if signal.endswith((suffix, f"({suffix[1:]})")):
            return unit
    return ""


def quantity(value: float | str | None, unit: str) -> str:
    """A value in a base unit as text with its unit. Strings (an answer such as a mode) pass through."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return UNKNOWN
    match unit:
        case "ratio":
            return percent(value)
        case "seconds":
            return duration(value)
        case "bytes" | "bytes/second" | "hertz" | "watts":
            return _scaled(value, {"bytes": "B", "bytes/second": "B/s", "hertz": "Hz", "watts": "W"}[unit])
        case "celsius":
            return f"{value:.0f} °C"
        case "per_second":
            return f"{plain(value)}/s"
        case "per_minute":
            return f"{plain(value)}/min"
        case "tokens" | "requests" | "blocks" | "steps" | "events" | "joules":
            return f"{plain(value)} {unit}"
    return plain(value)


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in _SI:
        if abs(value) >= factor:
            return f"{plain(value / factor)} {prefix}{unit}"
    return f"{plain(value)} {unit}"


def readable(stem: str) -> str:
    """An incident class or signal as words: `batch_thrashing` → Batch thrashing."""
    words = [_SPELLED.get(word, word) for word in stem.replace("_", " ").split()]
    text = " ".join(words)
    return text[:1].upper() + text[1:]
