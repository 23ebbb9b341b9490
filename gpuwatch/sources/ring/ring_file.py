"""A step ring (docs/ring.md), read without locks while an engine writes it.

Everything in the file is untrusted: sizes are checked before they are used, and a slot counts only if its sequence
numbers at both ends are the expected one and its checksum is right. It is read, not mapped: a mapped file that somebody
truncates kills its reader. RingError names the file and the reason.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model import Floats

MAGIC = b"GWRING01"
HEADER_BYTES = 4096
_JSON_AT = 256
_NEWEST_AT, _GENERATION_AT, _NEWEST_FINISHED_AT = 64, 72, 96
_FIXED = struct.Struct("<8sIIIII4xQQ16s")
_U64 = struct.Struct("<Q")
_MAX_SLOTS = 1 << 20
_MAX_ROWS = 1 << 16
_MAX_FIELDS = 256
_EDGE_BYTES = 24  # sequence number, checksum with padding, sequence number
_TABLE_TRIES = 3


class RingError(ValueError):
    """A file that is not a usable step ring."""


class _Field(msgspec.Struct):
    name: str


class _Description(msgspec.Struct):
    step: list[_Field]
    request: list[_Field]
    finished: list[_Field] = []
    engine: str = ""
    rank: int = 0
    pid: int = 0
    info: dict[str, Any] = {}


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Slots read in one go, up to number `last`. `columns` by field name; `torn` is the first that could not be read."""

    columns: dict[str, Floats]
    last: int
    lapped: int
    torn: int | None


class _Table(msgspec.Struct, frozen=True):
    """A circular table of the file: `rows` slots from byte `at`, the newest number at byte `newest_at`."""

    at: int
    rows: int
    newest_at: int
    names: list[str]
    slot: np.dtype[Any]


class RingFile:
    """One open ring file; it can be read to its end even when another has taken its name."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RingError(f"{path}: {error.strerror or error}") from error
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise RingError(f"{path}: not a regular file")
            self.inode = (status.st_dev, status.st_ino)
            self._layout(self._read(HEADER_BYTES, 0), status.st_size)
        except RingError:
            os.close(self._fd)
            raise

    def _layout(self, head: bytes, size: int) -> None:
        path = self._path
        magic, header, slot, slots, row, rows, _, self.created_unix_ns, instance = _FIXED.unpack_from(head)
        if magic != MAGIC:
            raise RingError(f"{path}: not a step ring (magic {magic!r})")
        if header != HEADER_BYTES or not 1 < slots <= _MAX_SLOTS or slots & (slots - 1) or rows > _MAX_ROWS:
            raise RingError(f"{path}: impossible sizes (header {header}, {slots} slots, {rows} rows)")
        told = self._description(head)
        self.instance: bytes = instance
        self.engine, self.rank, self.pid, self.info = told.engine, told.rank, told.pid, told.info
        fields = [field.name for field in told.step]
        self._columns = [field.name for field in told.request]
        columns = len(self._columns)
        if slot != _EDGE_BYTES + 8 * len(fields) or row != 8 * columns or not columns or self._columns[0] != "id":
            raise RingError(
                f"{path}: {len(fields)} and {columns} fields do not fill slots of {slot} and rows of {row} bytes"
            )
        if "ended_at" not in fields:
            raise RingError(f"{path}: no field ended_at")
        self._table_at, self._table_bytes = HEADER_BYTES + slot * slots, row * rows
        self.shows_requests = rows > 0
        self._row = np.dtype([("id", "<u8"), *((name, "<f8") for name in self._columns[1:])])
        self._steps = _table(HEADER_BYTES, slots, _NEWEST_AT, fields)
        self._finished = self._finished_table(head, [field.name for field in told.finished])
        last = self._finished or self._steps
        end = max(self._table_at + self._table_bytes, last.at + last.rows * last.slot.itemsize)
        if size < end:
            raise RingError(f"{path}: truncated, {size} bytes instead of {end}")
        self.slots = slots

    def _finished_table(self, head: bytes, names: list[str]) -> _Table | None:
        """The table of finished requests; None in a file without one."""
        row, rows = struct.unpack_from("<II", head, 84)
        if not rows:
            return None
        if not 1 < rows <= _MAX_SLOTS or rows & (rows - 1) or row != _EDGE_BYTES + 8 * len(names):
            raise RingError(f"{self._path}: {rows} rows of {row} bytes for {len(names)} fields of finished requests")
        if "finished_at" not in names:
            raise RingError(f"{self._path}: no field finished_at")
        return _table(self._table_at + self._table_bytes, rows, _NEWEST_FINISHED_AT, names)

    def _description(self, head: bytes) -> _Description:
        (length,) = struct.unpack_from("<I", head, 80)
        if not 0 < length <= HEADER_BYTES - _JSON_AT:
            raise RingError(f"{self._path}: impossible length of its description ({length})")
        try:
            told = msgspec.convert(json.loads(head[_JSON_AT : _JSON_AT + length]), _Description)
        except (ValueError, RecursionError) as error:
            raise RingError(f"{self._path}: unreadable description: {error}") from None
        names = [[field.name for field in fields] for fields in (told.step, told.request, told.finished)]
        if any(len(each) > _MAX_FIELDS or len(set(each)) < len(each) or "" in each for each in names):
            raise RingError(f"{self._path}: repeated, empty or too many field names")
        return told

    def completed(self, after: int) -> Rows:
        """Steps that have ended since slot `after`, oldest first, up to a step that runs or a torn slot."""
        return self._appended(self._steps, after)

    def finished(self, after: int) -> Rows | None:
        """Requests that have finished since row `after`, oldest first; None where the engine does not tell."""
        return self._appended(self._finished, after) if self._finished is not None else None

    def _appended(self, table: _Table, after: int) -> Rows:
        newest = self._number(table.newest_at)
        first = max(after + 1, newest - table.rows + 1)
        count = newest - first + 1
        if count <= 0:
            return Rows(_as_columns(table, np.empty((0, len(table.names)))), after, 0, None)
        copied = self._copy(table, first, count)
        expected = np.arange(first, first + count, dtype=np.uint64) * np.uint64(2)
        good = (copied["seq"] == expected) & (copied["end"] == expected)
        fields = copied["fields"]
        taken = 0
        while taken < count and good[taken] and zlib.crc32(fields[taken].tobytes()) == copied["crc"][taken]:
            taken += 1
        torn = first + taken if taken < count and not self._runs(copied[taken], first + taken, newest) else None
        return Rows(_as_columns(table, fields[:taken]), first + taken - 1, first - after - 1, torn)

    def running(self) -> dict[str, float] | None:
        """The planned values of the step that runs now; None if none does or it cannot be read."""
        newest = self._number(_NEWEST_AT)
        if not newest:
            return None
        slot = self._copy(self._steps, newest, 1)[0]
        if not self._runs(slot, newest, newest) or zlib.crc32(slot["fields"].tobytes()) != slot["crc"]:
            return None
        return dict(zip(self._steps.names, slot["fields"].tolist(), strict=True))

    def generation(self) -> int:
        """Generation of the request table; odd while it is written."""
        return self._number(_GENERATION_AT)

    def table(self) -> tuple[NDArray[np.uint64], dict[str, Floats]] | None:
        """Ids and columns of the request table; None if it was being written at each of three tries."""
        for _ in range(_TABLE_TRIES):
            generation = self.generation()
            raw = self._read(self._table_bytes, self._table_at)
            if generation % 2 == 0 and self.generation() == generation:
                rows = np.frombuffer(raw, self._row)
                rows = rows[rows["id"] != 0]
                return rows["id"].copy(), {name: rows[name].copy() for name in self._columns[1:]}
        return None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _copy(self, table: _Table, first: int, count: int) -> NDArray[Any]:
        """Slots `first` … as they stand, in order of their numbers."""
        size, at = table.slot.itemsize, (first - 1) % table.rows
        before_wrap = min(count, table.rows - at)
        raw = self._read(before_wrap * size, table.at + at * size)
        if count > before_wrap:
            raw += self._read((count - before_wrap) * size, table.at)
        return np.frombuffer(raw, table.slot)

    def _runs(self, slot: Any, number: int, newest: int) -> bool:
        return number == newest and int(slot["seq"]) == int(slot["end"]) == 2 * number - 1

    def _number(self, at: int) -> int:
        number = int(_U64.unpack(self._read(_U64.size, at))[0])
        if number >= 1 << 62:
            raise RingError(f"{self._path}: impossible number {number} at byte {at}")
        return number

    def _read(self, size: int, at: int) -> bytes:
        raw = os.pread(self._fd, size, at)
        if len(raw) < size:
            raise RingError(f"{self._path}: truncated, nothing at byte {at + len(raw)}")
        return raw


def _table(at: int, rows: int, newest_at: int, names: list[str]) -> _Table:
    slot = np.dtype([("seq", "<u8"), ("fields", "<f8", (len(names),)), ("crc", "<u4"), ("zero", "<u4"), ("end", "<u8")])
    return _Table(at, rows, newest_at, names, slot)


def _as_columns(table: _Table, fields: Floats) -> dict[str, Floats]:
    return {name: fields[:, i].copy() for i, name in enumerate(table.names)}
