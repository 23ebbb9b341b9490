"""Takes container runtimes' records apart: docker's JSON lines and CRI's `stdout F`, whose `P` means "goes on".

A record may break a long line into pieces; the pieces become one text again, up to a bound. What is no such record
passes as it is.
"""

from __future__ import annotations

import re

import msgspec

_CRI = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) ([FP]) ")
PIECES_CHARS = 64 * 1024


class _Docker(msgspec.Struct):
    log: str
    time: str = ""


class Unwrapper:
    """Pieces in, texts out, each with the runtime's time before it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    def feed(self, text: str) -> list[str]:
        """Take a record; the texts that are whole now (none, or one)."""
        if text.startswith('{"log":'):
            return self._docker(text)
        found = _CRI.match(text)
        if found is None:
            return [*self.flush(), text]
        return self._piece(found[1], text[found.end() :], found[2] == "F")

    def flush(self) -> list[str]:
        """What waits for its end, as it is."""
        whole = "".join(self._pieces)
        self._pieces, self._chars = [], 0
        return [whole] if whole else []

    def _docker(self, text: str) -> list[str]:
        try:
            record = msgspec.json.decode(text, type=_Docker)
        except (msgspec.DecodeError, UnicodeError):
            return [*self.flush(), text]
        return self._piece(record.time[:40], record.log.rstrip("\r\n"), record.log.endswith("\n"))

    def _piece(self, time: str, text: str, ends: bool) -> list[str]:
        room = PIECES_CHARS - self._chars
        piece = text[:room] if self._pieces else f"{time} {text[:room]}"
        self._pieces.append(piece)
        self._chars += len(piece)
        return self.flush() if ends else []
