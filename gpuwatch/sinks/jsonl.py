"""A file with one transition a line, for log shippers and for people. Rotated by size: `file`, `file.1` … `file.N`.

A line is written whole or, when the disk is full, taken back and tried again later.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from ..config import Jsonl
from ..model import Transition
from .delivery import Retry


class JsonlSink:
    """Appends to the configured file; each line is one write(2), so that lines of two writers do not mix."""

    name = "jsonl"
    newest_only = False

    def __init__(self, settings: Jsonl) -> None:
        self.path = Path(settings.path)
        self._max_bytes = settings.max_bytes
        self._keep = settings.keep

    async def send(self, transition: Transition) -> None:
        """Append one line. Raises Retry where the file cannot be written."""
        line = msgspec.json.encode(transition) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size + len(line) > self._max_bytes:
                self._rotate()
            self._append(line)
        except OSError as error:
            raise Retry(f"{self.path}: {error.strerror or error}") from error

    async def aclose(self) -> None:
        """Nothing is kept open between lines."""

    def _append(self, line: bytes) -> None:
        fd = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            before = os.fstat(fd).st_size
            if os.write(fd, line) < len(line):
                os.ftruncate(fd, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        for n in range(self._keep, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{n}")
            newer = self.path if n == 1 else self.path.with_name(f"{self.path.name}.{n - 1}")
            if newer.exists():
                newer.replace(older)
