"""Columns of 64-bit words made small: a recorded table (rows × signals) packed by column, exactly.

Each column takes the first form that reproduces its bits: one constant word; decimals (whole numbers times 10^-d, as
differences where those are smaller, zigzag, byte planes); a dictionary (few distinct words); raw (xor with the row
before, byte planes). Packed columns still go through zlib, one stream a block. Missing values (the canonical NaN) stand
in a bit mask in front of their column.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_CONST, _DECIMAL, _DICT, _RAW = range(4)
_HEAD = struct.Struct("<BBBB")  # form, decimal places, flags, width in bytes
_DELTA, _MASKED = 1, 2
_NAN = np.array([np.nan]).view(np.uint64)[0]
_EXACT = 2.0**53
_PLACES = range(13)
_PROBE_ROWS = 16


def pack(table: Words) -> bytes:
    """A table of shape (rows, columns) as bytes; `unpack` with the same shape gives it back bit by bit."""
    rows, width = table.shape
    if rows == 0 or width == 0:
        return b""
    constant = (table == table[0]).all(axis=0)
    parts: list[bytes] = [b""] * width
    for j in np.flatnonzero(constant):
        parts[j] = _HEAD.pack(_CONST, 0, 0, 8) + table[0, j].tobytes()
    moving = np.flatnonzero(~constant)
    if moving.size:
        for j, packed in zip(moving, _pack_moving(np.ascontiguousarray(table[:, moving].T)), strict=True):
            parts[j] = packed
    return b"".join(parts)


def unpack(data: memoryview, rows: int, width: int) -> tuple[Words, int]:
    """The table and the number of bytes that it took. Raises ValueError where the bytes are not a packed table."""
    table = np.empty((rows, width), dtype=np.uint64)
    offset = 0
    if rows:
        for j in range(width):
            column, offset = _unpack_column(data, offset, rows)
            table[:, j] = column
    return table, offset


def _pack_moving(columns: Words) -> list[bytes]:
    """Pack columns (given as contiguous rows) of which none is constant."""
    missing = columns == _NAN
    filled = _fill(columns, missing) if missing.any() else columns
    places, wholes = _decimals(filled)
    steps = np.diff(wholes, axis=1, prepend=wholes[:, :1])
    levels = wholes - wholes[:, :1]
    is_delta = np.abs(steps).sum(axis=1, dtype=np.float64) <= np.abs(levels).sum(axis=1, dtype=np.float64)
    small = np.where(is_delta[:, None], steps, levels)
    zigzag = ((small << 1) ^ (small >> 63)).astype(np.uint64)
    widths = _byte_widths(zigzag.max(axis=1))
    packed: list[bytes] = []
    for j in range(len(columns)):
        if places[j] < 0:
            packed.append(_pack_words(columns[j]))
            continue
        masked = bool(missing[j].any())
        head = _HEAD.pack(_DECIMAL, int(places[j]), _DELTA * bool(is_delta[j]) + _MASKED * masked, int(widths[j]))
        mask = np.packbits(missing[j]).tobytes() if masked else b""
        packed.append(head + wholes[j, :1].tobytes() + mask + _planes(zigzag[j], int(widths[j])))
    return packed


def _fill(columns: Words, missing: NDArray[np.bool_]) -> Words:
    """Missing cells take the value before them (0 at the start): differences stay small."""
    last = np.maximum.accumulate(np.where(missing, 0, np.arange(columns.shape[1])), axis=1)
    filled = np.take_along_axis(columns, last, axis=1)
    filled[filled == _NAN] = 0
    return filled


def _decimals(columns: Words) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """For each column the fewest decimal places that reproduce its bits (-1: none), and the whole numbers."""
    values = columns.view(np.float64)
    places = np.full(len(columns), -1, dtype=np.int8)
    wholes = np.zeros(columns.shape, dtype=np.int64)
    left = np.arange(len(columns))
    with np.errstate(all="ignore"):
        for digits in _PLACES:
            probed = left[_exact(columns[left, :_PROBE_ROWS], values[left, :_PROBE_ROWS], digits)[0]]
            if not probed.size:
                continue
            good, whole = _exact(columns[probed], values[probed], digits)
            places[probed[good]] = digits
            wholes[probed[good]] = whole[good]
            left = left[places[left] < 0]
            if not left.size:
                break
    return places, wholes


def _exact(bits: Words, values: NDArray[np.float64], digits: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    scaled = np.rint(values * 10.0**digits)
    whole = np.where(np.abs(scaled) < _EXACT, scaled, 0.0).astype(np.int64)
    again = whole.astype(np.float64) / 10.0**digits
    return (again.view(np.uint64) == bits).all(axis=1), whole


def _pack_words(column: Words) -> bytes:
    """A column that is no decimal: request hashes, or doubles with all their bits."""
    distinct, first, index = np.unique(column, return_index=True, return_inverse=True)
    if 2 * len(distinct) < len(column):
        seen = np.argsort(first)
        rank = np.empty(len(distinct), dtype=np.uint64)
        rank[seen] = np.arange(len(distinct), dtype=np.uint64)
        width = int(_byte_widths(np.array([len(distinct) - 1], dtype=np.uint64))[0])
        head = _HEAD.pack(_DICT, 0, 0, width) + struct.pack("<I", len(distinct))
        return head + distinct[seen].tobytes() + _planes(rank[index], width)
    mixed = column.copy()
    mixed[1:] ^= column[:-1]
    return _HEAD.pack(_RAW, 0, 0, 8) + _planes(mixed, 8)


def _unpack_column(data: memoryview, offset: int, rows: int) -> tuple[Words, int]:
    try:
        form, digits, flags, width = _HEAD.unpack_from(data, offset)
        offset += _HEAD.size
        if form == _CONST:
            return np.full(rows, np.frombuffer(data, np.uint64, 1, offset)[0]), offset + 8
        if form == _DECIMAL:
            return _unpack_decimal(data, offset, rows, digits, flags, width)
        if form == _DICT:
            (count,) = struct.unpack_from("<I", data, offset)
            distinct = np.frombuffer(data, np.uint64, count, offset + 4)
            index, end = _unplane(data, offset + 4 + 8 * count, rows, width)
            return distinct[index.astype(np.intp)], end
        if form == _RAW:
            mixed, end = _unplane(data, offset, rows, width)
            return np.bitwise_xor.accumulate(mixed), end
    except (struct.error, IndexError) as error:
        raise ValueError(f"a packed column is cut: {error}") from error
    raise ValueError(f"a packed column of unknown form {form}")


def _unpack_decimal(data: memoryview, offset: int, rows: int, digits: int, flags: int, width: int) -> tuple[Words, int]:
    base = np.frombuffer(data, np.int64, 1, offset)[0]
    offset += 8
    missing = None
    if flags & _MASKED:
        size = (rows + 7) // 8
        missing = np.unpackbits(np.frombuffer(data, np.uint8, size, offset), count=rows).astype(bool)
        offset += size
    zigzag, offset = _unplane(data, offset, rows, width)
    small = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)
    whole = base + (np.cumsum(small) if flags & _DELTA else small)
    words = (whole.astype(np.float64) / 10.0**digits).view(np.uint64)
    if missing is not None:
        words[missing] = _NAN
    return words, offset


def _byte_widths(largest: Words) -> NDArray[np.int64]:
    """How many bytes the largest word of each column needs, 1–8."""
    return np.maximum(1, sum((largest >> np.uint64(8 * k)) > 0 for k in range(8))).astype(np.int64)


def _planes(words: Words, width: int) -> bytes:
    """The lowest `width` bytes of each word, one plane after the other: like bytes stand together."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 8)[:, :width].T.tobytes()


def _unplane(data: memoryview, offset: int, rows: int, width: int) -> tuple[Words, int]:
    planes = np.frombuffer(data, np.uint8, rows * width, offset).reshape(width, rows)
    words = np.zeros((rows, 8), dtype=np.uint8)
    words[:, :width] = planes.T
    return words.view(np.uint64).reshape(rows), offset + rows * width
