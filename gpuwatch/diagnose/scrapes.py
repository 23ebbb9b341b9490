"""Cuts a file into the scrapes it holds: one after the other, divided by a comment that says a time (`# +60 s`,
`# 2026-11-29T10:00:00Z`, `# t=1764000000`), by `# EOF`, or where a series comes again with another value.

HELP, TYPE and UNIT lines belong to what follows them; any other comment without a time divides nothing.
"""

from __future__ import annotations

import math
import re

import msgspec

from .times import span_seconds, unix_seconds

MAX_SCRAPES = 100_000
ASSUMED_S = 15.0
"""Between scrapes that say no time: the usual pace of a Prometheus."""

_META = re.compile(rb"^#\s*(?:HELP|TYPE|UNIT)\b")
_AFTER = re.compile(r"\+\s*+((?:\d++(?:\.\d++)?\s*+(?:ms|sec|s|min|m|h)?+\s*+)++)(?![\w.:-])")
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?|\b\d{10}(?:\.\d+)?\b|\b\d{13}\b)"
)
_HEAD = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:.]*(?:\{.*\})?)[ \t]+(\S+)")


class Scrape(msgspec.Struct, frozen=True):
    """One scrape: its text, and when it was taken: seconds after the one before (`after_s`) or unix seconds (`at`)."""

    body: bytes
    after_s: float = math.nan
    at: float = math.nan


def split_scrapes(text: bytes) -> list[Scrape]:
    """The scrapes in the order of the file; at least one."""
    done: list[Scrape] = []
    for part, after_s, at in _by_comments(text.replace(b"\r\n", b"\n").split(b"\n")):
        for n, lines in enumerate(_by_repetition(part)):
            body = b"\n".join(lines) + b"\n"
            done.append(Scrape(body, after_s, at) if n == 0 else Scrape(body))
            if len(done) >= MAX_SCRAPES:
                return done
    return done or [Scrape(text)]


def times_of(scrapes: list[Scrape], ends_at: float) -> tuple[list[float], bool]:
    """When each was taken (unix seconds; the last one at `ends_at` where none says), and whether some were assumed."""
    assumed = any(math.isnan(s.after_s) and math.isnan(s.at) for s in scrapes[1:])
    times: list[float] = []
    t = 0.0
    for n, scrape in enumerate(scrapes):
        if scrape.at == scrape.at:
            t = scrape.at
        elif n:
            t += scrape.after_s if scrape.after_s == scrape.after_s else ASSUMED_S
        times.append(t)
    if not any(s.at == s.at for s in scrapes):
        return [t - times[-1] + ends_at for t in times], assumed
    first = next(n for n, s in enumerate(scrapes) if s.at == s.at)
    if first:  # those before the first stamp lie before it, at the distances that are known
        lead = [_distance(scrapes[n + 1]) for n in range(first)]
        for n in range(first - 1, -1, -1):
            times[n] = times[n + 1] - lead[n]
    return times, assumed


def _distance(scrape: Scrape) -> float:
    return scrape.after_s if scrape.after_s == scrape.after_s else ASSUMED_S


def _by_comments(lines: list[bytes]) -> list[tuple[list[bytes], float, float]]:
    """Parts between dividing comments: (lines, seconds after the part before, unix seconds)."""
    parts: list[tuple[list[bytes], float, float]] = []
    current: list[bytes] = []
    after_s = at = math.nan
    full = False  # the part has seen its `# EOF`
    for line in lines:
        is_comment = line.startswith(b"#") and not _META.match(line)
        told = _time_in(line) if is_comment else (math.nan, math.nan)
        says_time = any(t == t for t in told)
        if (says_time or (full and line.strip())) and _has_samples(current):
            parts.append((current, after_s, at))
            current, after_s, at = [], math.nan, math.nan
        if line.strip():
            full = line.split()[1:2] == [b"EOF"] if is_comment else False
        if says_time:
            after_s, at = told
        elif line.strip() and not is_comment:
            current.append(line)
    if _has_samples(current) or not parts:
        parts.append((current, after_s, at))
    return parts


def _by_repetition(lines: list[bytes]) -> list[list[bytes]]:
    """Parts in which no series has two values.

    Where a series comes again with another value, or a third time, the pass that it belongs to is a scrape of its own.
    """
    parts: list[list[bytes]] = []
    current: list[bytes] = []
    seen: dict[bytes, bytes] = {}
    again: dict[bytes, bytes] = {}  # what has come again, equal so far
    run: list[bytes] = []  # its lines, and comments that may belong to them
    before = b""
    for line in lines:
        head = _HEAD.match(line)
        if head is None or line == before:  # an exporter may print a row twice
            run.append(line)
            continue
        before = line
        series, value = head[1], head[2]
        if series not in seen:
            current += [*run, line]
            run, again = [], {}
            seen[series] = value
            continue
        if series in again or seen[series] != value:
            parts.append(current)
            if series in again:
                parts.append(run)
                run, again = [], {}
            current, seen, run, again = [*run, line], {**again, series: value}, [], {}
            continue
        run.append(line)
        again[series] = value
    return [*parts, current + run]


def _has_samples(lines: list[bytes]) -> bool:
    return any(not line.startswith(b"#") for line in lines)


def _time_in(line: bytes) -> tuple[float, float]:
    """(seconds after, unix seconds) that a comment says; NaN where it does not."""
    text = line.decode("utf-8", "replace").lstrip("# \t").strip()
    if len(text) > 80:
        return math.nan, math.nan
    after = _AFTER.search(text)
    if after:
        return span_seconds(after[1]), math.nan
    stamp = _STAMP.search(text)
    return math.nan, unix_seconds(stamp[1].replace(" ", "T")) if stamp else math.nan
