"""Small files of the kernel (/proc, cgroups): read with a bound, taken apart without trust, errors in the user's words."""

from __future__ import annotations

import math
from pathlib import Path

LONGEST_BYTES = 256 * 1024


class NotSeenError(Exception):
    """Something that cannot be looked at: `what` it is, `why`, and the one change that would show it (`cure`)."""

    def __init__(self, what: str, why: str, cure: str = "") -> None:
        self.what = what
        self.why = why
        self.cure = cure
        super().__init__(f"{what}: {why}")


def read(path: Path, limit_bytes: int = LONGEST_BYTES) -> str:
    """The first `limit_bytes` of a file. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return (file.read(limit_bytes) or b"").decode("utf-8", "replace")


def read_or_empty(path: Path, limit_bytes: int = LONGEST_BYTES) -> str:
    """The same, empty where it cannot be read: for files that a kernel may not have."""
    try:
        return read(path, limit_bytes)
    except OSError:
        return ""


def reason(error: OSError) -> str:
    """Why a file could not be read, in two or three words."""
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, (FileNotFoundError, NotADirectoryError, ProcessLookupError)):
        return "not there"
    return (error.strerror or type(error).__name__).lower()


def pairs(text: str) -> dict[str, float]:
    """Lines of `name number` as in cpu.stat, memory.events and vmstat; other lines are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        figure = number(value)
        if figure == figure:
            found[name] = figure
    return found


def number(text: str) -> float:
    """A count as the kernel writes it; NaN for anything else (`max` is infinite)."""
    word = text.strip()
    if word == "max":
        return math.inf
    return float(word) if word.isascii() and word.isdigit() and len(word) < 25 else math.nan
