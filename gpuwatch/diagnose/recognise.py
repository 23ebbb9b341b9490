"""What a file is, by its content and never by its name: capsule, capture, page, spans, table, nvidia-smi, index, JSON, log.

Only the first 64 kB are looked at. Whatever is text and nothing else is taken for a log; its reader says whether it knows
any of it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from ..recording.capsule import MAGIC
from .host_table import column_of
from .smi_text import is_smi

Kind = Literal[
    "capsule", "capture", "page", "spans", "host table", "smi", "index", "json", "log", "empty", "html", "binary"
]

_SAMPLE = re.compile(
    rb"^[a-zA-Z_:][a-zA-Z0-9_:.]*(?:\{.*\})?[ \t]+[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|nan|inf)"
    rb"(?:[ \t]+-?[0-9.e+]+)?[ \t]*(?:#.*)?$",
    re.IGNORECASE,
)
_LIST = re.compile(rb"\[\s*[{\]]")
_META = re.compile(rb"^# (?:HELP|TYPE|UNIT|EOF)\b")
_TIME_COLUMNS = frozenset({"t_wall", "t", "time", "timestamp", "ts", "t_unix", "unix", "datetime", "date"})
_SPAN_KEYS = frozenset({"trace_id", "traceId", "context", "resourceSpans", "resource_spans", "span_id", "spanId"})
_ITERATION_KEYS = frozenset({"iterLatencyMS", "numActiveRequests", "kvCacheStats", "inflightBatchingStats"})
_MOSTLY = 0.8


def kind_of(head: bytes) -> Kind:
    """The kind of a file that begins with `head`."""
    if head[: len(MAGIC)] == MAGIC:
        return "capsule"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return "empty"
    if b"\0" in text:
        return "binary"
    if text[:1] == b"{" or _LIST.match(text):  # a log's line may begin with a bracket, too
        return _json_kind(text)
    if text[:9].lower() == b"<!doctype" or text[:5].lower() == b"<html":
        return "html"
    whole = text.splitlines(keepends=True)[:200]
    if len(whole) > 1 and not whole[-1].endswith(b"\n"):
        whole.pop()  # cut in the middle, by a writer that was killed or by the end of the head
    lines = [line.strip() for line in whole if line.strip()]
    table = _table_kind(lines[0])
    if table is None and is_smi(b"\n".join(lines[:12])):
        return "smi"
    return table or ("page" if _is_page(lines) else "log")


def _is_page(lines: list[bytes]) -> bool:
    """Samples, and hardly anything else beside comments."""
    samples = [line for line in lines if not line.startswith(b"#")]
    if any(_META.match(line) for line in lines):
        whole = samples[:-1] or samples  # whoever pastes a part of a page tears its last line
        return all(_SAMPLE.match(line) for line in whole[:3])
    if not samples:
        return False
    return sum(1 for line in samples if _SAMPLE.match(line)) >= _MOSTLY * len(samples)


def _table_kind(first: bytes) -> Kind | None:
    """A CSV table with a column of times: of pages (`n`), or of the host."""
    columns = {column.strip().strip(b'"').decode("utf-8", "replace").lower() for column in first.split(b",")}
    if len(columns) < 2 or not columns & _TIME_COLUMNS:
        return None
    if "t_wall" in columns and columns & {"n", "file"} and not any(map(column_of, columns)):
        return "index"
    return "host table"


def _json_kind(text: bytes) -> Kind:
    """By the keys of the first object. A line of a log may be an object too."""
    first = _first_object(text)
    if first is None:
        # pretty-printed or cut: the keys that occur early decide
        names = {name.decode("utf-8", "replace") for name in re.findall(rb'"([A-Za-z_]{2,40})"\s*:', text[:4000])}
    else:
        names = set(first)
    if "gpuwatch_capture" in names or ("src" in names and "t" in names):
        return "capture"
    if names & _SPAN_KEYS:
        return "spans"
    if names & _ITERATION_KEYS:
        return "page"  # an engine that shows its last iterations in place of a page
    if names & {"log", "msg", "message", "level", "severity", "fields"}:
        return "log"
    return "json"


def _first_object(text: bytes) -> dict[str, Any] | None:
    """The first line's object, or the first of a list; None where that line is no JSON."""
    line = text.split(b"\n", 1)[0].strip().rstrip(b",")
    try:
        first = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(first, list) and first:
        first = first[0]
    return first if isinstance(first, dict) else {}
