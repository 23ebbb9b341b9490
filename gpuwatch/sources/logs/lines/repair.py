"""Puts lines back together that were wrapped in the middle, and takes apart records that share a line.

A stats line is kept back until the next line is seen. A next line without any prefix is its rest if both together say
more than the first alone, or if the rest is nothing but the end of a number.
"""

from __future__ import annotations

import re

from ..phrases import worth
from .prefixes import Line

_STARTS = re.compile(
    r"(?<=\S)(?=(?:\([A-Z]\w{0,40} pid=\d{1,10}\) )?(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d)"
    r"|(?<=\S)(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[\] ])"
    r"|(?<=\S)(?=\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\])"
    r"|(?<=\S)(?=Engine \d{3}: Avg prompt)"
)
_NUMBER_END = re.compile(r"[\d.]{0,16}[%,]?\s{0,8}")
_REST_CHARS = 2048
_MOST_RECORDS = 64
_HEADS = (
    "Engine 0", "Engines Aggregated:", "Avg prompt", "Avg thr ", "Decode batch", "Prefill batch", "global_rank =",
    '"Active Request Count',
)  # fmt: skip


def records(text: str) -> list[str]:
    """The records of one line: a time in the middle of a word begins another."""
    parts = [part for part in _STARTS.split(text, maxsplit=_MOST_RECORDS) if part]
    if len(parts) < 2:
        return parts
    joined: list[str] = []
    for part in parts:  # `(APIServer pid=1) INFO …` is one record: its tag alone is none
        if joined and re.fullmatch(r"\([A-Z]\w{0,40} pid=\d{1,10}\)\s?", joined[-1]):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


class Joiner:
    """Holds one stats line back. `torn` counts lines that were put together again."""

    def __init__(self) -> None:
        self.torn = 0
        self._held: Line | None = None

    def feed(self, line: Line, raw: str) -> list[Line]:
        """Take the next line (`raw`: before its prefixes went); the lines that are whole now."""
        held = self._held
        if held is not None and not line.prefixed and self._continues(held.text, raw):
            held.text += raw
            self.torn += 1
            return []
        self._held = None
        out = [held] if held is not None else []
        if may_be_torn(line):
            self._held = line
        else:
            out.append(line)
        return out

    def flush(self) -> list[Line]:
        """The line that is held back, at the end or when the next one takes too long."""
        held, self._held = self._held, None
        return [held] if held is not None else []

    def _continues(self, held: str, rest: str) -> bool:
        if len(rest) > _REST_CHARS or len(held) > 2 * _REST_CHARS:
            return False
        return bool(_NUMBER_END.fullmatch(rest)) or worth(held + rest) > worth(held)


def may_be_torn(line: Line) -> bool:
    """Whether the next line may be the rest of this one: it has the head of a stats line."""
    head = line.text[:_REST_CHARS]
    return line.counts or any(part in head for part in _HEADS)
