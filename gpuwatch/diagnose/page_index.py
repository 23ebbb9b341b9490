"""When the pages of a folder were read: from `index.csv` beside them, from their names, or from the files themselves.

`index.csv` has the columns `n` (the page's number: the last in its file's name, or the first) or `file`, and `t_wall`
(unix seconds or ISO). Further columns are used where they are there: `took_s` or `latency_s`, `status` or `http_code`,
`error`. A row without a page is a look that brought nothing.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .times import unix_seconds

_NUMBER = re.compile(r"\d+")
_STAMP = re.compile(r"(?<!\d)(\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19})(?!\d)")
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ -]?(\d\d)[:-]?(\d\d)[:-]?(\d\d)(?:\.(\d+))?")
MAX_ROWS = 1_000_000
_FINE = ("", "200", "0", "ok")


class Look(msgspec.Struct, frozen=True):
    """One row: when (unix seconds), which page by number or file name, how long it took, and what went wrong."""

    at: float
    n: int = -1
    file: str = ""
    took_s: float = 0.0
    error: str = ""


def read_index(lines: Iterable[bytes]) -> tuple[list[Look], int]:
    """The rows in the order of time, and how many could not be read. ValueError where the columns are not there."""
    rows = csv.reader(line.decode("utf-8", "replace") for line in lines)
    header = [name.strip().strip("\ufeff").lower() for name in next(rows, [])]
    if "t_wall" not in header or not {"n", "file"} & set(header):
        raise ValueError(f"columns n (or file) and t_wall are needed, not {', '.join(header[:12])}")
    looks: list[Look] = []
    bad = 0
    for row in rows:
        cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
        at = unix_seconds(cells.get("t_wall", ""))
        n = int(cells["n"]) if cells.get("n", "").isascii() and cells.get("n", "").isdigit() else -1
        if at != at or (n < 0 and not cells.get("file")) or len(looks) >= MAX_ROWS:
            bad += bool(row)
            continue
        looks.append(Look(at, n, Path(cells.get("file", "")).name, _took_s(cells), _error(cells)))
    return sorted(looks, key=lambda look: look.at), bad


def numbers_in(name: str) -> tuple[int, int]:
    """The last and the first number in a file's name without its endings; −1 where there is none."""
    found = _NUMBER.findall(_bare(name))
    return (int(found[-1][:18]), int(found[0][:18])) if found else (-1, -1)


def time_in(name: str) -> float:
    """The time in a file's name: unix seconds, milliseconds … or a date with a time (UTC); NaN where there is none."""
    bare = _bare(name)
    date = _DATE.search(bare)
    if date:
        year, month, day, hour, minute, second, fraction = date.groups()
        at = unix_seconds(f"{year}-{month}-{day}T{hour}:{minute}:{second}.{(fraction or '0')[:6]}+00:00")
        if at == at:
            return at
    stamp = _STAMP.search(bare)
    return unix_seconds(stamp[1]) if stamp else math.nan


def _bare(name: str) -> str:
    return re.sub(r"(?:\.(?:gz|txt|prom|metrics|log|out|page|om|json))+$", "", name, flags=re.IGNORECASE)


def _took_s(cells: dict[str, str]) -> float:
    for key, factor in (("took_s", 1.0), ("latency_s", 1.0), ("took_ms", 1e-3), ("latency_ms", 1e-3)):
        try:
            return max(float(cells[key]) * factor, 0.0)
        except (KeyError, ValueError):
            continue
    return 0.0


def _error(cells: dict[str, str]) -> str:
    if cells.get("error", "").lower() not in ("", "0", "none", "null"):
        return cells["error"][:200]
    status = next((cells[k] for k in ("status", "http_code", "http", "code") if k in cells), "")
    return "" if status.lower() in _FINE else f"HTTP {status[:20]}"
