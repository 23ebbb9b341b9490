"""Pipeline calls as bytes and back, exactly: what the journal and the capsule hold.

A call is (now, batches). `Encoder` writes calls one at a time: each table is described where it first occurs and named
by its number afterwards. `pack_block` takes many such calls and packs every table by columns, which makes them some
five times smaller; `unpack_block` gives the calls back, equal to the last bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from ..model import Batch
from .columns import Words, pack, unpack
from .items import Item, Table, batch_of, items_of

Call = tuple[float, tuple[Batch, ...]]

_BLOCK_LEVEL = 1  # higher levels win 2 % and cost 50 % more
_MAX_BLOCK_BYTES = 512 * 1024 * 1024


class CodecError(Exception):
    """Bytes that are no recorded call or block although their checksum is right: another version wrote them."""


class _RawCall(msgspec.Struct, array_like=True, frozen=True):
    """One call: tables seen for the first time, then per batch `table, rows, table, rows, …`, then the words."""

    now: float
    new_tables: list[Table]
    order: list[list[int]]
    words: bytes


class _RawBlock(msgspec.Struct, array_like=True, frozen=True):
    """Many calls: all tables, the order of items of each call, rows per table, and the packed tables in a row."""

    nows: list[float]
    tables: list[Table]
    orders: list[list[list[int]]]
    rows: list[int]
    packed: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(_RawCall).decode
_decode_block = msgspec.msgpack.Decoder(_RawBlock).decode


class Encoder:
    """Writes the calls of one segment. A new segment needs a new encoder, so that it can be read alone."""

    def __init__(self) -> None:
        self._tables: dict[Table, int] = {}

    def encode(self, now: float, batches: Sequence[Batch]) -> bytes:
        """One call as bytes."""
        known = self._tables
        new: list[Table] = []
        order: list[list[int]] = []
        words: list[bytes] = []
        for batch in batches:
            line: list[int] = []
            for table, rows in items_of(batch):
                number = known.get(table)
                if number is None:
                    number = known[table] = len(known)
                    new.append(table)
                line += (number, len(rows))
                words.append(rows.tobytes())
            order.append(line)
        return _encode(_RawCall(now, new, order, b"".join(words)))


class _Reader:
    """Follows the calls of one segment and cuts their words into items."""

    def __init__(self) -> None:
        self.tables: list[Table] = []

    def read(self, payload: bytes) -> tuple[_RawCall, list[list[Item]]]:
        try:
            call = _decode_call(payload)
            self.tables += call.new_tables
            words = np.frombuffer(call.words, dtype=np.uint64)
            offset = 0
            batches: list[list[Item]] = []
            for line in call.order:
                items: list[Item] = []
                for number, rows in zip(line[::2], line[1::2], strict=True):
                    table = self.tables[number]
                    cells = rows * table.width
                    items.append((table, words[offset : offset + cells].reshape(rows, table.width)))
                    offset += cells
                batches.append(items)
        except (msgspec.MsgspecError, ValueError, IndexError, KeyError) as error:
            raise CodecError(f"not a recorded call: {error}") from error
        return call, batches


def decode_calls(payloads: Iterable[bytes]) -> Iterator[Call]:
    """The calls of one segment from its first. Raises CodecError."""
    reader = _Reader()
    for payload in payloads:
        call, batches = reader.read(payload)
        yield call.now, _batches(batches)


def pack_block(payloads: Iterable[bytes]) -> bytes:
    """The calls of one segment (as `Encoder` wrote them, from the first) as one compressed block. Raises CodecError."""
    reader = _Reader()
    nows: list[float] = []
    orders: list[list[list[int]]] = []
    rows: dict[Table, list[Words]] = {}
    for payload in payloads:
        call, batches = reader.read(payload)
        nows.append(call.now)
        orders.append(call.order)
        for items in batches:
            for table, words in items:
                rows.setdefault(table, []).append(words)
    whole = [_stack(table, rows.get(table, [])) for table in reader.tables]
    packed = b"".join(map(pack, whole))
    block = _RawBlock(nows, reader.tables, orders, [len(t) for t in whole], packed)
    return zlib.compress(_encode(block), _BLOCK_LEVEL)


def unpack_block(data: bytes) -> Iterator[Call]:
    """The calls of a block, in order. Raises CodecError before the first one where the block cannot be read."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(data, _MAX_BLOCK_BYTES)
        if not inflate.eof:
            raise CodecError("a block that is cut or impossibly large")
        block = _decode_block(plain)
        tables = _unpack_tables(block)
        return iter([(now, _rebuild(order, tables)) for now, order in zip(block.nows, block.orders, strict=True)])
    except (zlib.error, msgspec.MsgspecError, ValueError, IndexError, KeyError) as error:
        raise CodecError(f"not a recorded block: {error}") from error


class _Cursor:
    """A table and how many of its rows have been handed out."""

    def __init__(self, table: Table, rows: Words) -> None:
        self.table = table
        self.rows = rows
        self.at = 0

    def take(self, count: int) -> Item:
        self.at += count
        if self.at > len(self.rows):
            raise ValueError("a block holds fewer rows than its order names")
        return self.table, self.rows[self.at - count : self.at]


def _unpack_tables(block: _RawBlock) -> list[_Cursor]:
    view = memoryview(block.packed)
    cursors: list[_Cursor] = []
    for table, count in zip(block.tables, block.rows, strict=True):
        rows, used = unpack(view, count, table.width)
        view = view[used:]
        cursors.append(_Cursor(table, rows))
    return cursors


def _rebuild(order: list[list[int]], tables: list[_Cursor]) -> tuple[Batch, ...]:
    return tuple(
        batch_of([tables[number].take(count) for number, count in zip(line[::2], line[1::2], strict=True)])
        for line in order
    )


def _batches(batches: list[list[Item]]) -> tuple[Batch, ...]:
    try:
        return tuple(map(batch_of, batches))
    except (ValueError, IndexError, KeyError) as error:
        raise CodecError(f"not a recorded call: {error}") from error


def _stack(table: Table, parts: list[Words]) -> Words:
    return np.concatenate(parts) if parts else np.empty((0, table.width), dtype=np.uint64)
