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

from ..model import Floats

MAGIC = b"GWRING01"
HEADER_BYTES = 4096
_JSON_AT = 256
_NEWEST_AT, _GENERATION_AT = 64, 72
_FIXED = struct.Struct("<8sIIIII4xQQ16s")
_U64 = struct.Struct("<Q")
_MAX_SLOTS = 1 << 20
_MAX_ROWS = 1 << 16
_MAX_FIELDS = 256
_TABLE_TRIES = 3


class RingError(ValueError):
    """A file that is not a usable step ring."""


class _Field(msgspec.Struct):
    name: str


class _Description(msgspec.Struct):
    step: list[_Field]
    request: list[_Field]
    engine: str = ""
    rank: int = 0
    pid: int = 0
    info: dict[str, Any] = {}


class Steps(msgspec.Struct, frozen=True, eq=False):
    """Slots read in one go, up to number `last`. `columns` by field name; `torn` slot numbers could not be read."""

    columns: dict[str, Floats]
    last: int
    lapped: int
    torn: int | None


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
        magic, header, slot, slots, row, rows, _, _, instance = _FIXED.unpack_from(head)
        if magic != MAGIC:
            raise RingError(f"{path}: not a step ring (magic {magic!r})")
        if header != HEADER_BYTES or not 1 < slots <= _MAX_SLOTS or slots & (slots - 1) or rows > _MAX_ROWS:
            raise RingError(f"{path}: impossible sizes (header {header}, {slots} slots, {rows} rows)")
        told = self._description(head)
        self.instance: bytes = instance
        self.engine, self.rank, self.pid, self.info = told.engine, told.rank, told.pid, told.info
        self._fields = [field.name for field in told.step]
        self._columns = [field.name for field in told.request]
        fields, columns = len(self._fields), len(self._columns)
        if slot != 24 + 8 * fields or row != 8 * columns or not columns or self._columns[0] != "id":
            raise RingError(
                f"{path}: {fields} and {columns} fields do not fill slots of {slot} and rows of {row} bytes"
            )
        if "ended_at" not in self._fields or "begun_at" not in self._fields:
            raise RingError(f"{path}: no field begun_at or ended_at")
        self._table_at, self._table_bytes = HEADER_BYTES + slot * slots, row * rows
        if size < self._table_at + self._table_bytes:
            raise RingError(f"{path}: truncated, {size} bytes instead of {self._table_at + self._table_bytes}")
        self.slots = slots
        self._slot = np.dtype(
            [("seq", "<u8"), ("fields", "<f8", (fields,)), ("crc", "<u4"), ("zero", "<u4"), ("end", "<u8")]
        )
        self._row = np.dtype([("id", "<u8"), *((name, "<f8") for name in self._columns[1:])])

    def _description(self, head: bytes) -> _Description:
        (length,) = struct.unpack_from("<I", head, 80)
        if not 0 < length <= HEADER_BYTES - _JSON_AT:
            raise RingError(f"{self._path}: impossible length of its description ({length})")
        try:
            told = msgspec.convert(json.loads(head[_JSON_AT : _JSON_AT + length]), _Description)
        except (ValueError, RecursionError) as error:
            raise RingError(f"{self._path}: unreadable description: {error}") from None
        names = [[f.name for f in told.step], [f.name for f in told.request]]
        if any(len(each) > _MAX_FIELDS or len(set(each)) < len(each) or "" in each for each in names):
            raise RingError(f"{self._path}: repeated, empty or too many field names")
        return told

    def completed(self, after: int) -> Steps:
        """Steps that have ended since slot `after`, oldest first, up to a step that runs or a torn slot."""
        newest = self._number(_NEWEST_AT)
        first = max(after + 1, newest - self.slots + 1)
        count = newest - first + 1
        if count <= 0:
            return Steps(self._as_columns(np.empty((0, len(self._fields)))), after, 0, None)
        copied = self._copy(first, count)
        expected = np.arange(first, first + count, dtype=np.uint64) * np.uint64(2)
        good = (copied["seq"] == expected) & (copied["end"] == expected)
        fields = copied["fields"]
        taken = 0
        while taken < count and good[taken] and zlib.crc32(fields[taken].tobytes()) == copied["crc"][taken]:
            taken += 1
        torn = first + taken if taken < count and not self._runs(copied[taken], first + taken, newest) else None
        return Steps(self._as_columns(fields[:taken]), first + taken - 1, first - after - 1, torn)

    def running(self) -> dict[str, float] | None:
        """The planned values of the step that runs now; None if none does or it cannot be read."""
        newest = self._number(_NEWEST_AT)
        if not newest:
            return None
        slot = self._copy(newest, 1)[0]
        if not self._runs(slot, newest, newest) or zlib.crc32(slot["fields"].tobytes()) != slot["crc"]:
            return None
        return dict(zip(self._fields, slot["fields"].tolist(), strict=True))

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

    def _copy(self, first: int, count: int) -> NDArray[Any]:
        """Slots `first` … as they stand, in order of their numbers."""
        size, at = self._slot.itemsize, (first - 1) % self.slots
        before_wrap = min(count, self.slots - at)
        raw = self._read(before_wrap * size, HEADER_BYTES + at * size)
        if count > before_wrap:
            raw += self._read((count - before_wrap) * size, HEADER_BYTES)
        return np.frombuffer(raw, self._slot)

    def _runs(self, slot: Any, number: int, newest: int) -> bool:
        return number == newest and int(slot["seq"]) == int(slot["end"]) == 2 * number - 1

    def _as_columns(self, fields: Floats) -> dict[str, Floats]:
        return {name: fields[:, i].copy() for i, name in enumerate(self._fields)}

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
