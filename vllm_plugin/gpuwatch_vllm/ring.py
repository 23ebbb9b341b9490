"""Writes a step ring, version 1 (docs/ring.md of gpuwatch): a file in shared memory with two circular tables.

`step` holds what the scheduler did in each step, `finished` how each request went. Every row is written once, whole: a
stat logger hears of a step when it has ended. It is written with `pwrite`, not through a mapping: a mapped file that
somebody truncates, or a file system that is full, would kill the process that writes.

One process writes a file. It holds a lock on it, so that a second engine of the same name is told so instead of taking
its place; the kernel drops the lock of a process that has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MAGIC = b"GWRING01"
HEADER_BYTES = 4096
JSON_AT = 256
NEWEST_STEP_AT, NEWEST_FINISHED_AT = 64, 96
STEP_ROWS, FINISHED_ROWS = 8192, 4096
_REQUEST_FIELDS = ("id",)  # of the live request table, which has no rows here: a stat logger does not see the queue
_FIXED = struct.Struct("<8sIIIII4xQQ16s")
_U64 = struct.Struct("<Q")
_ROW_EDGES = 24  # sequence number, checksum with padding, sequence number


class RingTakenError(OSError):
    """A living process writes this file."""


class Fields(NamedTuple):
    """The columns of the two tables, in their order."""

    step: Sequence[str]
    finished: Sequence[str]


class Rows(NamedTuple):
    """How many rows the tables keep: powers of two."""

    step: int
    finished: int


ROWS = Rows(STEP_ROWS, FINISHED_ROWS)


class Table:
    """One circular table of float64 columns: appended to, never read here."""

    def __init__(self, file: int, at: int, rows: int, fields: int, newest_at: int) -> None:
        self._file, self._at, self._rows, self._newest_at = file, at, rows, newest_at
        self._fields = struct.Struct(f"<{fields}d")
        self._tail = struct.Struct("<IIQ")
        self.row_bytes = self._fields.size + _ROW_EDGES
        self.newest = 0

    def append(self, values: Sequence[float]) -> None:
        """Write the next row, then its number. OSError where the file system refuses."""
        number = self.newest + 1
        self.newest = number
        seq = 2 * number
        raw = self._fields.pack(*values)
        row = _U64.pack(seq) + raw + self._tail.pack(zlib.crc32(raw), 0, seq)
        os.pwrite(self._file, row, self._at + ((number - 1) % self._rows) * self.row_bytes)
        os.pwrite(self._file, _U64.pack(number), self._newest_at)

    def closed(self) -> None:
        """Forget the file: its number may soon be another file's. Appending is an OSError from now on."""
        self._file = -1


class Ring:
    """One engine's ring file. Making it keeps an older file as `.prev`. OSError where it cannot be written.

    `unix_ns` and `monotonic_ns` are the time of creation; `info` is what the engine says of itself.
    """

    def __init__(
        self,
        path: Path,
        engine: str,
        rank: int,
        fields: Fields,
        info: Mapping[str, object],
        *,
        unix_ns: int,
        monotonic_ns: int,
        rows: Rows = ROWS,
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_where_taken(path)
        fresh = path.with_name(f"{path.name}.tmp")
        self._file = _fresh(fresh)
        step_bytes = 8 * len(fields.step) + _ROW_EDGES
        finished_at = HEADER_BYTES + rows.step * step_bytes
        self.step = Table(self._file, HEADER_BYTES, rows.step, len(fields.step), NEWEST_STEP_AT)
        self.finished = Table(self._file, finished_at, rows.finished, len(fields.finished), NEWEST_FINISHED_AT)
        try:
            # Room is taken now: a full file system says so here, not in the middle of a step.
            os.posix_fallocate(self._file, 0, finished_at + rows.finished * self.finished.row_bytes)
            head = bytearray(HEADER_BYTES)
            request_bytes = 8 * len(_REQUEST_FIELDS)
            _FIXED.pack_into(
                head, 0, MAGIC, HEADER_BYTES, step_bytes, rows.step, request_bytes, 0,
                monotonic_ns, unix_ns, secrets.token_bytes(16),
            )  # fmt: skip
            struct.pack_into("<II", head, 84, self.finished.row_bytes, rows.finished)
            described = _described(engine, rank, fields, info)
            struct.pack_into("<I", head, 80, len(described))
            head[JSON_AT : JSON_AT + len(described)] = described
            os.pwrite(self._file, head, 0)
            _take_name(fresh, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, which stays as the black box."""
        if self._file >= 0:
            os.close(self._file)
            for table in (self.step, self.finished):
                table.closed()
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()


def ring_path(directory: str, engine: str, rank: int) -> Path:
    """Where the ring of an engine's rank lies; of the name, letters, digits, dot, dash and underscore are kept."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in engine)[:80].lstrip(".")
    return Path(directory, f"{kept or 'engine'}-{rank}.ring")


def _refuse_where_taken(path: Path) -> None:
    """RingTakenError where a living process holds the file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RingTakenError(f"{path}: a living process writes it") from None
    finally:
        os.close(file)


def _fresh(path: Path) -> int:
    """A new file of ours, locked. What a process that died left under the name goes; a link is not followed."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _take_name(fresh: Path, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}.prev"))
    fresh.rename(path)


def _described(engine: str, rank: int, fields: Fields, info: Mapping[str, object]) -> bytes:
    """The JSON of the header. Facts that do not fit into the page are left out, the last ones first."""
    facts = dict(info)
    while True:
        told = {
            "engine": engine[:200], "rank": rank, "pid": os.getpid(),
            "step": [{"name": name, "unit": _unit(name)} for name in fields.step],
            "request": [{"name": name, "unit": "hash"} for name in _REQUEST_FIELDS],
            "finished": [{"name": name, "unit": _unit(name)} for name in fields.finished],
            "info": facts,
        }  # fmt: skip
        text = json.dumps(told, separators=(",", ":")).encode()
        if len(text) <= HEADER_BYTES - JSON_AT or not facts:
            return text
        facts.popitem()


def _unit(name: str) -> str:
    if name.endswith("_at"):
        return "unix seconds"
    return next((word for word in ("seconds", "tokens", "blocks", "ratio") if word in name), "1")
