"""Follows a file that is being written: new whole lines at each look, across rotation, never more than a bound at once.

Rotation by rename is another file under the name: the old one is read to its end first. Rotation by copy and truncation
is a file that is shorter than what was read of it, or no longer holds there what it held (only a checksum is kept). A
writer that is faster than the bound is caught up with by skipping, which is counted.
"""

from __future__ import annotations

import os
import select
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Protocol

BYTES_A_LOOK = 1024 * 1024
LINE_BYTES = 64 * 1024
HEAD_BYTES = 256 * 1024
TAIL_BYTES = 64 * 1024
STANDARD_INPUT = 0
_MARK_BYTES = 64


class Lines(Protocol):
    """Where lines come from. `cut` counts what was lost, by name; `written_at` is when something last came (or NaN)."""

    cut: Counter[str]
    ended: bool

    def look(self) -> list[bytes]:
        """Whole lines that are new, in order."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Splitter:
    """Bytes in, whole lines out; the last one waits for its end, and is cut where it gets too long."""

    def __init__(self, cut: Counter[str]) -> None:
        self._cut = cut
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now."""
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        if self._skipping and parts:
            parts.pop(0)
            self._skipping = False
        if len(self._rest) > LINE_BYTES:
            if not self._skipping:
                parts.append(self._rest)
                self._cut["long_lines"] += 1
            self._rest, self._skipping = b"", True
        return parts

    def drop(self) -> None:
        """Forget the unfinished line: its rest will not come."""
        self._rest, self._skipping = b"", False

    def skip(self) -> None:
        """What comes next begins in the middle of a line."""
        self._rest, self._skipping = b"", True


class FileLines:
    """Follows a path. The first look begins at the end; `backlog` is what was there before."""

    def __init__(self, path: Path) -> None:
        self.cut: Counter[str] = Counter()
        self.ended = False
        self._path = path
        self._file: IO[bytes] | None = None
        self._at = 0
        self._mark = 0
        self._splitter = Splitter(self.cut)

    def backlog(self) -> tuple[list[bytes], float]:
        """Open: the first lines (the engine's start), the last ones, and when they were written (unix seconds).

        Raises OSError.
        """
        file = self._open()
        status = os.fstat(file.fileno())
        size = status.st_size
        head = os.pread(file.fileno(), HEAD_BYTES, 0)
        tail_from = max(len(head), size - TAIL_BYTES)
        tail = os.pread(file.fileno(), max(0, size - tail_from), tail_from)
        self._at = len(head) + len(tail) if tail_from == len(head) else tail_from + len(tail)
        lines = (
            (head + tail).split(b"\n") if tail_from == len(head) else [*head.split(b"\n")[:-1], *tail.split(b"\n")[1:]]
        )
        rest = lines.pop() if lines else b""
        self._splitter.feed(rest[-LINE_BYTES:])
        self._remember()
        return lines, status.st_mtime

    def look(self) -> list[bytes]:
        """New whole lines. Raises OSError where the file was never there."""
        file = self._file or self._open()
        lines = self._read(file)
        if self._is_another():
            lines += self._read(file)
            self.close()
            self._splitter.drop()
            self.cut["rotations"] += 1
            lines += self._read(self._open())
        return lines

    def close(self) -> None:
        """Close the file; the next look opens what is there then, from its beginning."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> IO[bytes]:
        self.close()
        file = self._path.open("rb", buffering=0)
        self._file, self._at, self._mark = file, 0, zlib.crc32(b"")
        return file

    def _read(self, file: IO[bytes]) -> list[bytes]:
        size = os.fstat(file.fileno()).st_size
        if size < self._at or not self._holds_mark(file):
            self.cut["truncations"] += 1
            self._splitter.drop()
            self._at = 0
        if size - self._at > BYTES_A_LOOK:
            self.cut["skips"] += 1
            self.cut["skipped_bytes"] += size - self._at - BYTES_A_LOOK
            self._at = size - BYTES_A_LOOK
            self._splitter.skip()
        data = os.pread(file.fileno(), min(BYTES_A_LOOK, max(0, size - self._at)), self._at)
        self._at += len(data)
        self._remember()
        return self._splitter.feed(data) if data else []

    def _remember(self) -> None:
        if self._file is not None:
            self._mark = self._checksum(self._file)

    def _holds_mark(self, file: IO[bytes]) -> bool:
        return self._checksum(file) == self._mark

    def _checksum(self, file: IO[bytes]) -> int:
        """Of the last bytes that were read."""
        first = max(0, self._at - _MARK_BYTES)
        return zlib.crc32(os.pread(file.fileno(), self._at - first, first))

    def _is_another(self) -> bool:
        """Whether another file has the name now. While none has it, the old one goes on."""
        if self._file is None:
            return False
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)


class PipeLines:
    """Standard input, or any descriptor: what has come, without waiting. `ended` at its end."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.cut: Counter[str] = Counter()
        self.ended = False
        self._descriptor = STANDARD_INPUT if descriptor is None else descriptor
        self._splitter = Splitter(self.cut)

    def look(self) -> list[bytes]:
        """Whole lines that have come; the last one need not have an end."""
        lines: list[bytes] = []
        taken = 0
        while not self.ended and taken < BYTES_A_LOOK and select.select([self._descriptor], [], [], 0)[0]:
            data = os.read(self._descriptor, LINE_BYTES)
            taken += len(data)
            lines += self._splitter.feed(data) if data else self._splitter.feed(b"\n")
            self.ended = not data
        return [line for line in lines if line]

    def close(self) -> None:
        """The descriptor is not ours to close."""
