"""Opens a file, plain or gzip, bounded: its head (for recognising it), its lines, or the whole of it.

A compressed file that breaks off gives what could be inflated. Raises MaterialError naming the file.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from .material import MaterialError

HEAD_BYTES = 64 * 1024
MAX_WHOLE_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
_GZIP = b"\x1f\x8b"


class Content:
    """One file's bytes. `-` is stdin, which can be read once: its head stays unread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_stdin = path == "-"
        self.cut = False
        self._stdin: io.BufferedReader | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return "stdin" if self.is_stdin else self.path

    def modified_at(self) -> float:
        """When the file was written last, unix seconds; NaN for stdin."""
        if self.is_stdin:
            return float("nan")
        try:
            return Path(self.path).stat().st_mtime
        except OSError as error:
            raise self._error(error) from error

    def head(self, most: int = HEAD_BYTES) -> bytes:
        """The first bytes, inflated."""
        if self.is_stdin:
            return self._stdin_reader().peek(most)[:most]
        with self._open() as stream:
            return self._some(stream, most)

    def whole(self, most: int = MAX_WHOLE_BYTES) -> bytes:
        """Everything, at most `most` bytes (`cut` says whether there was more, or the end was broken)."""
        with self._open() as stream:
            text = self._some(stream, most)
            self.cut = self.cut or (len(text) == most and bool(self._some(stream, 1)))
            return text

    def lines(self) -> Iterator[bytes]:
        """Lines with their line feeds; one that is absurdly long comes in pieces."""
        with self._open() as stream:
            while True:
                try:
                    line = stream.readline(MAX_LINE_BYTES)
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    self.cut = True
                    return
                except OSError as error:
                    raise self._error(error) from error
                if not line:
                    return
                yield line

    def _some(self, stream: io.BufferedReader, most: int) -> bytes:
        """Up to `most` bytes, piece by piece, so that a broken gzip stream gives what it has."""
        pieces: list[bytes] = []
        while most > 0:
            try:
                piece = stream.read1(min(most, HEAD_BYTES))  # what is there, though the rest be broken
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.cut = True
                break
            except OSError as error:
                raise self._error(error) from error
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    @contextmanager
    def _open(self) -> Iterator[io.BufferedReader]:
        if self.is_stdin:
            yield self._stdin_reader()
            return
        try:
            with Path(self.path).open("rb") as raw:
                packed = raw.read(2) == _GZIP
            opened = gzip.open if packed else open
        except OSError as error:
            raise self._error(error) from error
        with opened(self.path, "rb") as stream:
            yield cast("io.BufferedReader", stream)

    def _stdin_reader(self) -> io.BufferedReader:
        if self._stdin is None:
            stream = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer), HEAD_BYTES)
            if stream.peek(2)[:2] == _GZIP:
                stream = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=stream)), HEAD_BYTES)
            self._stdin = cast("io.BufferedReader", stream)
        return self._stdin

    def _error(self, error: OSError) -> MaterialError:
        return MaterialError(f"{self.name}: {error.strerror or error}")
