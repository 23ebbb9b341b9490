"""Layouts that were learned: spans of one engine differ in a few bytes, so a block of them is read by columns.

A layout is the length of a span and, for each of its bytes, whether it must be as in the span it was learned from
(tags, lengths, keys), may be anything (ids, times, values), or must be a continued digit of a number or not. Spans that
match are read exactly as shape.py reads them, some twenty times cheaper; all others go through shape.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import Array, SpanColumns, Wanted
from .shape import Shape, put, shape_of

MOST_LAYOUTS = 256
MOST_BYTES = 4096
"""A longer span is not learned: it holds text, and no other will be as long."""

SHORTEST_BYTES = 28
"""Trace id and span id with their tags and lengths."""

FEWEST = 3
"""So many spans of one length must be unread before one of them is learned."""

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

    def read(self, columns: SpanColumns, rows: Array, block: NDArray[np.uint8]) -> None:
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
        columns.name[rows] = columns.name_code(self.name[:256])
        columns.kind[rows], columns.failed[rows] = shape.kind, shape.failed
        for key, at, width, double in shape.numbers:
            values = _words(block, at, 8, "<f8")[:, 0] if double else _integers(block, at, width)
            columns.number_column(key)[rows] = values
        for key, at, width in shape.texts:
            column, text = columns.text_column(key), block[:, at : at + width].tobytes()
            for i, row in enumerate(rows.tolist()):
                column[row] = text[i * width : (i + 1) * width]


class Layouts:
    """What was learned so far, by the length of a span. Forgets everything when there is too much of it."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[Layout]] = {}
        self._count = 0

    def read(self, spans: list[bytes], wanted: Wanted, most_attributes: int) -> tuple[SpanColumns, int, int]:
        """The columns of these spans, the attributes cut, and the fields walked. OtlpError where one is none."""
        columns = SpanColumns(len(spans))
        by_length: dict[int, list[int]] = {}
        for row, span in enumerate(spans):
            by_length.setdefault(len(span), []).append(row)
        cut = walked = 0
        for length, rows in by_length.items():
            if length < SHORTEST_BYTES:
                continue  # not even its ids fit in: rows without ids, as any such span
            if len(rows) >= FEWEST and length <= MOST_BYTES:
                rows = self._block(columns, spans, rows, wanted, most_attributes)
            for row in rows:
                shape = shape_of(spans[row], wanted, most_attributes)
                put(columns, row, spans[row], shape)
                cut += max(0, shape.attributes - most_attributes)
                walked += shape.fields
        return columns, cut, walked

    def _block(
        self, columns: SpanColumns, spans: list[bytes], rows: list[int], wanted: Wanted, most_attributes: int
    ) -> list[int]:
        """Read spans of one length by the layouts that are known or learned here; the rows that fit none."""
        length = len(spans[rows[0]])
        block = np.frombuffer(b"".join([spans[row] for row in rows]), np.uint8).reshape(len(rows), length)
        left = np.array(rows, np.intp)
        known = self._by_length.get(length, ())
        for layout in known:
            left, block = _taken(layout, columns, left, block)
            if not len(left):
                return []
        for _ in range(_TRIES):
            if len(left) < FEWEST:
                break
            span = spans[left[0]]
            shape = shape_of(span, wanted, most_attributes)
            if not shape.learnable:
                break
            before = len(left)
            layout = Layout(span, shape)
            left, block = _taken(layout, columns, left, block)
            if before - len(left) >= FEWEST:
                self._keep(length, layout)
        return [int(row) for row in left]

    def _keep(self, length: int, layout: Layout) -> None:
        if self._count >= MOST_LAYOUTS:
            self._by_length.clear()
            self._count = 0
        self._by_length.setdefault(length, []).append(layout)
        self._count += 1


def _taken(
    layout: Layout, columns: SpanColumns, rows: Array, block: NDArray[np.uint8]
) -> tuple[Array, NDArray[np.uint8]]:
    """Read what matches; what is left."""
    fits = layout.matches(block)
    if fits.all():
        layout.read(columns, rows, block)
        return rows[:0], block[:0]
    if fits.any():
        layout.read(columns, rows[fits], block[fits])
        return rows[~fits], block[~fits]
    return rows, block


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
