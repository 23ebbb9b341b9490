"""Layouts that were learned: spans of one engine differ in a few bytes, so a block of them is read by columns.

A layout is the length of a span and, for each of its bytes, whether it must be as in the span it was learned from
(tags, lengths, keys), may be anything (ids, times, values), or must be a continued digit of a number or not. Spans that
match are read exactly as shape.py reads them, some twenty times cheaper; all others go through shape.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import TEXT_BYTES, Array, SpanColumns, Wanted
from .shape import Shape, put, shape_of

MOST_LAYOUTS = 256
MOST_BYTES = 4096
"""A longer span is not learned: it holds text, and no other will be as long."""

SHORTEST_BYTES = 28
"""Trace id and span id with their tags and lengths."""

FEWEST = 3
"""So many spans of one length must be unread before one of them is learned."""

Rows = slice | Array
"""Neighbouring rows, or some."""

_TRIES = 8
"""Layouts learned for one length of one export: what differs in every span is not learned forever."""


class Layout:
    """How spans of one length and one skeleton are read."""

    def __init__(self, span: bytes, shape: Shape) -> None:
        self.shape = shape
        self.name = span[shape.name[0] : sum(shape.name)]
        mask = np.full(len(span), 0xFF, np.uint8)
        for at, width in shape.holes:
            mask[at : at + width] = 0
        for at, width in shape.varints:
            mask[at : at + width] = 0x80
        self._mask = mask
        self._expected = np.frombuffer(span, np.uint8) & mask

    def matches(self, block: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which rows have this skeleton."""
        differs = block & self._mask
        np.not_equal(differs, self._expected, out=differs.view(bool))
        return np.asarray(~differs.view(bool).any(axis=1))

    def read(self, columns: SpanColumns, rows: Rows, block: NDArray[np.uint8]) -> None:
        """Write the spans of a block, one a row, into their rows."""
        shape = self.shape
        if shape.trace[1] == 16 and shape.span[1] == 8 and shape.parent[1] in (0, 8):
            own = _words(block, shape.span[0], 8, ">u8")[:, 0]
            columns.trace[rows] = _words(block, shape.trace[0] + 8, 8, ">u8")[:, 0]
            columns.span[rows], columns.ids_good[rows] = own, own != 0
            if shape.parent[1]:
                columns.parent[rows] = _words(block, shape.parent[0], 8, ">u8")[:, 0]
        if shape.start >= 0:
            columns.start_ns[rows] = _words(block, shape.start, 8, "<u8")[:, 0]
        if shape.end >= 0:
            columns.end_ns[rows] = _words(block, shape.end, 8, "<u8")[:, 0]
        columns.name[rows] = columns.name_code(self.name[:TEXT_BYTES])
        columns.kind[rows], columns.failed[rows] = shape.kind, shape.failed
        for key, at, width, double in shape.numbers:
            values = _words(block, at, 8, "<f8")[:, 0] if double else _integers(block, at, width)
            columns.number_column(key)[rows] = values
        for key, at, width in shape.texts:
            column, text = columns.text_column(key), block[:, at : at + width].tobytes()
            texts = [text[i : i + width] for i in range(0, len(text), width)] if width else [b""] * len(block)
            if isinstance(rows, slice):
                column[rows] = texts
            else:
                for row, one in zip(rows.tolist(), texts, strict=True):
                    column[row] = one


class Layouts:
    """What was learned so far, by the length of a span. Forgets everything when there is too much of it."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[Layout]] = {}
        self._count = 0

    def read(self, spans: dict[int, list[bytes]], wanted: Wanted, most_attributes: int) -> tuple[SpanColumns, int, int]:
        """The columns of spans (by their length), the attributes cut, the fields walked. OtlpError where one is none."""
        columns = SpanColumns(sum(map(len, spans.values())))
        base = cut = walked = 0
        for length, alike in spans.items():
            first, base = base, base + len(alike)
            if length < SHORTEST_BYTES:
                continue  # not even its ids fit in: rows without ids, as any such span
            if len(alike) >= FEWEST and length <= MOST_BYTES:
                left = self._block(columns, alike, first, wanted, most_attributes)
            else:
                left = list(range(len(alike)))
            for i in left:
                shape = shape_of(alike[i], wanted, most_attributes)
                put(columns, first + i, alike[i], shape)
                cut += max(0, shape.attributes - most_attributes)
                walked += shape.fields
        return columns, cut, walked

    def _block(
        self, columns: SpanColumns, alike: list[bytes], first: int, wanted: Wanted, most_attributes: int
    ) -> list[int]:
        """Read spans of one length into the rows from `first` by layouts that are known or learned; which fit none."""
        length = len(alike[0])
        block = np.frombuffer(b"".join(alike), np.uint8).reshape(len(alike), length)
        left: Rows = slice(first, first + len(alike))
        for layout in self._by_length.get(length, ()):
            left, block = _taken(layout, columns, left, block)
            if not len(block):
                return []
        for _ in range(_TRIES):
            if len(block) < FEWEST:
                break
            span = block[0].tobytes()
            shape = shape_of(span, wanted, most_attributes)
            if not shape.learnable:
                break
            before = len(block)
            layout = Layout(span, shape)
            left, block = _taken(layout, columns, left, block)
            if before - len(block) >= FEWEST:
                self._keep(length, layout)
        return [int(row) - first for row in _numbered(left)] if len(block) else []

    def _keep(self, length: int, layout: Layout) -> None:
        if self._count >= MOST_LAYOUTS:
            self._by_length.clear()
            self._count = 0
        self._by_length.setdefault(length, []).append(layout)
        self._count += 1


def _taken(
    layout: Layout, columns: SpanColumns, rows: Rows, block: NDArray[np.uint8]
) -> tuple[Rows, NDArray[np.uint8]]:
    """Read what matches; what is left."""
    fits = layout.matches(block)
    if fits.all():
        layout.read(columns, rows, block)
        return slice(0, 0), block[:0]
    if fits.any():
        numbered = _numbered(rows)
        layout.read(columns, numbered[fits], block[fits])
        return numbered[~fits], block[~fits]
    return rows, block


def _numbered(rows: Rows) -> Array:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _words(block: NDArray[np.uint8], at: int, width: int, kind: str) -> Array:
    """Bytes at one place of each row as numbers of eight bytes."""
    return np.ascontiguousarray(block[:, at : at + width]).view(kind)


def _integers(block: NDArray[np.uint8], at: int, width: int) -> Array:
    """Varints of one width at one place of each row, as signed integers."""
    digits = block[:, at : at + width] & 0x7F
    total = digits[:, 0].astype(np.uint64)
    for i in range(1, width):
        total |= digits[:, i].astype(np.uint64) << np.uint64(7 * i)
    return total.view(np.int64)
