"""The complete parser for Prometheus exposition text, classic and OpenMetrics: tolerant by line, bounded as a whole.

A page is engine-supplied and untrusted. A line that cannot be read is counted and costs nothing else; a value that
cannot be read is NaN and counted; a last line without a line feed may be cut in the middle of a number, so it is never
believed. What exceeds a limit is cut and counted. exposition_plan.py reads pages of a known layout 10× cheaper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What a page may be at most. `series` bounds the wanted ones; longer lines drop their series.

    A longer label value is cut to `label_bytes` and counted: an engine with an absurd name is still watched.
    """

    page_bytes: int = 8 * 1024 * 1024
    lines: int = 100_000
    series: int = 20_000
    line_bytes: int = 16 * 1024
    label_bytes: int = 1024
    labels: int = 100


DEFAULT_LIMITS = Limits()


class Series(msgspec.Struct, frozen=True):
    """A sample's name (with `_total`, `_bucket` …) and labels, values unescaped."""

    name: str
    labels: dict[str, str]


class Page(msgspec.Struct, frozen=True):
    """What a page says: `values[i]` is the value of `series[i]` (NaN where unreadable), found at `places[i]`.

    A place is the line's index and the bytes before the value. `names` holds every sample name, wanted or not.
    `dropped` counts unreadable lines and values and what the limits cut; `cut` is True for a page that has no end.
    """

    series: tuple[Series, ...]
    values: list[float]
    places: tuple[tuple[int, bytes], ...]
    names: frozenset[str]
    lines: int
    dropped: int
    cut: bool


# Possessive quantifiers: a hostile line is read once, never backtracked into.
_LINE = re.compile(rb'[ \t]*+([a-zA-Z_:][a-zA-Z0-9_:]*+)?[ \t]*+(\{(?:[^"{}]|"(?:[^"\\]|\\.)*+")*+\})?[ \t]*+')
_LABEL = re.compile(rb'[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|([a-zA-Z_][a-zA-Z0-9_]*+))[ \t]*+(=[ \t]*+"((?:[^"\\]|\\.)*+)")?')
_BETWEEN_LABELS = re.compile(rb"[ \t]*+(?:,[ \t]*+|$)")
_HASH, _BLANK = 35, b" \t\r\f\v"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


_ENDS = (b"", b"\r", b"# EOF", b"# EOF\r")
"""What may stand behind the last line feed of a complete page; anything else may have been cut in the middle."""


def split_page(body: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[list[bytes], bool]:
    """The page's complete lines, and whether something was cut (limit reached, or no line feed at the end)."""
    cut = len(body) > limits.page_bytes
    if cut:
        body = body[: limits.page_bytes]
    lines = body.split(b"\n", limits.lines)
    rest = lines.pop()
    return lines, cut or rest not in _ENDS


def parse(body: bytes, wanted: Container[str] | None = None, limits: Limits = DEFAULT_LIMITS) -> Page:
    """Read a page; only series whose sample name is in `wanted` are kept (None: all). Never raises for bad text."""
    lines, cut = split_page(body, limits)
    series: list[Series] = []
    values: list[float] = []
    places: list[tuple[int, bytes]] = []
    names: dict[bytes, bool] = {}
    dropped = int(cut)
    unreadable: set[int] = set()
    for index, line in enumerate(lines):
        if not line or line[0] == _HASH or (line[0] in _BLANK and line.lstrip()[:1] in (b"", b"#")):
            continue  # help, type, unit, end
        if len(line) > limits.line_bytes:
            dropped += 1
            continue
        found = _read_head(line, names, wanted, limits, full=len(series) >= limits.series)
        if found is None:
            dropped += 1
            continue
        one, end, cuts = found
        dropped += cuts
        if one is None:
            continue
        value = sample_value(line[end:])
        if value is None:
            unreadable.add(len(series))
        series.append(one)
        values.append(math.nan if value is None else value)
        places.append((index, line[:end]))
    kept, repeated = _first_of_each(series)
    if repeated:
        series, values, places = [series[i] for i in kept], [values[i] for i in kept], [places[i] for i in kept]
        unreadable.intersection_update(kept)  # a line that is dropped as a repetition is one loss
    known = frozenset(name.decode() for name in names)
    lost = dropped + repeated + len(unreadable)
    return Page(tuple(series), values, tuple(places), known, len(lines), lost, cut)


def sample_value(tail: bytes) -> float | None:
    """The value in `value [timestamp] [# exemplar]`; None where it is not a number or something else follows."""
    parts = tail.split(None, 2)
    if not parts or b"_" in parts[0]:
        return None
    try:
        value = float(parts[0])
        if len(parts) > 1 and not parts[1].startswith(b"#"):
            float(parts[1])
            if len(parts) > 2 and not parts[2].startswith(b"#"):
                return None
    except ValueError:
        return None
    return value


def _read_head(
    line: bytes, names: dict[bytes, bool], wanted: Container[str] | None, limits: Limits, *, full: bool
) -> tuple[Series | None, int, int] | None:
    """Name and labels of a line, where its value begins, how much was cut; None if unreadable.

    No series where it is unwanted, or where the page is `full` of wanted ones: then it is cut.
    """
    match = _LINE.match(line)
    if match is None or match.end() == len(line):
        return None
    name, braces = match[1], match[2]
    if name is None and braces is None:
        return None
    if braces is None:
        if match.end() == match.end(1):  # `name` and then something that is neither a brace nor a blank
            return None
        read: tuple[dict[str, str], int] | None = ({}, 0)
    else:
        read = None
    if name is None:  # {"a quoted.name", label="x"} 1
        read = _read_labels(braces, limits)
        name = read[0].pop("", "").encode() if read else b""
        if not name:
            return None
    keep = names.get(name)
    if keep is None:
        keep = names[name] = wanted is None or name.decode() in wanted
    if not keep:
        return None, 0, 0
    if full:
        return None, 0, 1
    if read is None:
        read = _read_labels(braces, limits)
    if read is None or "" in read[0]:
        return None
    labels, cuts = read
    return Series(name.decode(), labels), match.end(), cuts


def _read_labels(braces: bytes, limits: Limits) -> tuple[dict[str, str], int] | None:
    """`{a="x",b="y"}` as a dict and how many values were cut; a quoted name under the empty key; None if unreadable."""
    inner = braces[1:-1].strip()
    labels: dict[str, str] = {}
    at = cuts = 0
    while at < len(inner):
        match = _LABEL.match(inner, at)
        if match is None:
            return None
        quoted, plain, assigned, value = match[1], match[2], match[3], match[4]
        after = _BETWEEN_LABELS.match(inner, match.end())
        if after is None or len(labels) >= limits.labels:
            return None
        at = after.end()
        if assigned is None:
            if quoted is None or labels:
                return None
            labels[""] = _text(quoted)
            continue
        key = _text(plain if quoted is None else quoted)
        if not key or key in labels:
            return None
        cuts += len(value) > limits.label_bytes
        labels[key] = _text(value[: limits.label_bytes])
    return labels, cuts


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[0])  # an unknown escape stays as it is: dcgm-exporter does not escape


def _first_of_each(series: list[Series]) -> tuple[list[int], int]:
    """Indices without repeated series (the first one counts), and how many were repeated."""
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    kept: list[int] = []
    for index, one in enumerate(series):
        key = (one.name, frozenset(one.labels.items()))
        if key not in seen:
            seen.add(key)
            kept.append(index)
    return kept, len(series) - len(kept)
