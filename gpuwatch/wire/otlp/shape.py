"""One span on the wire: where its ids, times and wanted attributes lie. Read once for a span, learned once for a layout.

Everything that is not one of those is stepped over. `learnable` says that another span of the same length whose other
bytes are the same can be read at the same places (layouts.py): nothing is repeated, unknown or out of the usual order.
"""

from __future__ import annotations

import struct

import msgspec

from .body import OtlpError, TooManyFieldsError
from .columns import TEXT_BYTES, SpanColumns, Wanted
from .wire import FIXED64, LENGTH, MOST_FIELDS, VARINT, fields, signed, step_over, varint

Place = tuple[int, int]
"""Begin and width in bytes."""

_DOUBLE = struct.Struct("<d")
_UINT64 = struct.Struct("<Q")
_UINT64_BIG = struct.Struct(">Q")
_ERROR = 2


class Shape(msgspec.Struct):
    """Places in the bytes of one span; −1 where it does not say. Numbers are (key, place, is a double)."""

    length: int
    trace: Place = (-1, 0)
    span: Place = (-1, 0)
    parent: Place = (-1, 0)
    start: int = -1
    end: int = -1
    name: Place = (0, 0)
    kind: int = 0
    failed: bool = False
    numbers: list[tuple[str, int, int, bool]] = []
    texts: list[tuple[str, int, int]] = []
    integers_as_text: list[tuple[str, int]] = []
    events: list[tuple[bytes, int]] = []
    holes: list[Place] = []
    varints: list[Place] = []
    attributes: int = 0
    fields: int = 0
    learnable: bool = True


def shape_of(span: bytes, wanted: Wanted, most_attributes: int) -> Shape:
    """Walk the fields of a span. OtlpError where they are none; IndexError where the last one is cut."""
    shape = Shape(len(span))
    seen = 0
    at, end = 0, len(span)
    while at < end:
        tag, at = varint(span, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise OtlpError(f"field number {number}")
        shape.fields += 1
        if shape.fields > MOST_FIELDS:
            raise TooManyFieldsError(f"a span of more than {MOST_FIELDS} fields")
        if wire != LENGTH:
            until = step_over(span, wire, at, end)
            _scalar(shape, span, number, wire, at, until)
        else:
            size, at = varint(span, at)
            until = at + size
            if until > end:
                raise OtlpError("a field is longer than its message")
            if number == 9:
                shape.attributes += 1
                if shape.attributes <= most_attributes:
                    _attribute(shape, span, wanted, at, until)
                else:
                    shape.learnable = False
            else:
                _piece(shape, span, wanted, number, at, until)
        if number not in (9, 11, 13):
            bit = 1 << min(number, 17)
            if seen & bit or number > 16:
                shape.learnable = False  # repeated: the last one counts; unknown: no hurry
            seen |= bit
        at = until
    return shape


def _scalar(shape: Shape, span: bytes, number: int, wire: int, at: int, until: int) -> None:
    """A number of a span: its times are holes, its kind and its flags part of the layout."""
    if wire == FIXED64 and number == 7:
        shape.start = at
        shape.holes.append((at, 8))
    elif wire == FIXED64 and number == 8:
        shape.end = at
        shape.holes.append((at, 8))
    elif wire == VARINT and number == 6:
        shape.kind = min(varint(span, at)[0], 255)
    elif wire == VARINT and number in (10, 12, 14):
        shape.varints.append((at, until - at))


def _piece(shape: Shape, span: bytes, wanted: Wanted, number: int, at: int, until: int) -> None:
    """A length-delimited field other than an attribute."""
    place = at, until - at
    if number == 1:
        shape.trace = place
        shape.holes.append(place)
    elif number == 2:
        shape.span = place
        shape.holes.append(place)
    elif number == 4:
        shape.parent = place
        shape.holes.append(place)
    elif number == 5:
        shape.name = place
    elif number == 11:
        shape.learnable = False
        if wanted.events and len(shape.events) < 64:
            _event(shape, span, wanted, at, until)
    elif number == 13:
        shape.holes.append(place)
    elif number == 15:
        for field, wire, value_at, _ in fields(span, at, until):
            shape.fields += 1
            if field == 3 and wire == VARINT:
                shape.failed = varint(span, value_at)[0] == _ERROR


def _event(shape: Shape, span: bytes, wanted: Wanted, at: int, until: int) -> None:
    name, time_ns = b"", 0
    for field, wire, value_at, value_end in fields(span, at, until):
        shape.fields += 1
        if field == 1 and wire == FIXED64:
            (time_ns,) = _UINT64.unpack_from(span, value_at)
        elif field == 2 and wire == LENGTH:
            name = span[value_at : min(value_end, value_at + TEXT_BYTES)]
    if name in wanted.events:
        shape.events.append((name, time_ns))


def _attribute(shape: Shape, span: bytes, wanted: Wanted, at: int, until: int) -> None:
    """One KeyValue: key first, value second, as every exporter writes it; any other order is read, but not learned."""
    key, value_at, value_end = b"", -1, -1
    for i, (field, wire, begin, end) in enumerate(fields(span, at, until)):
        shape.fields += 1
        if field == 1 and wire == LENGTH:
            key = span[begin : min(end, begin + TEXT_BYTES)]
        elif field == 2 and wire == LENGTH:
            if value_at >= 0:  # two values merge: what is in both is not worth the trouble
                value_at, value_end = begin, end
                shape.learnable = False
            value_at, value_end = begin, end
        if (i, field) not in ((0, 1), (1, 2)):
            shape.learnable = False
    if value_at < 0:
        return
    number, text = wanted.numbers.get(key), wanted.texts.get(key)
    if number or text:
        _forget(shape, number or text or "")
        _value(shape, span, number, text, value_at, value_end)
    else:
        _unwanted(shape, span, value_at, value_end)


def _forget(shape: Shape, key: str) -> None:
    """An attribute that comes twice: the last one counts."""
    for found in (shape.numbers, shape.texts, shape.integers_as_text):
        if any(row[0] == key for row in found):
            found[:] = [row for row in found if row[0] != key]  # type: ignore[misc]
            shape.learnable = False


def _value(shape: Shape, span: bytes, number: str | None, text: str | None, at: int, until: int) -> None:
    """A wanted AnyValue. The last of its fields counts."""
    count, field, wire, begin, end = 0, 0, 0, at, at
    for piece in fields(span, at, until):
        count += 1
        field, wire, begin, end = piece
    shape.fields += count
    if count != 1:
        shape.learnable = False
    if field == 4 and wire == FIXED64 and number:
        shape.numbers.append((number, begin, 8, True))
        shape.holes.append((begin, 8))
    elif field == 3 and wire == VARINT:
        if number:
            shape.numbers.append((number, begin, end - begin, False))
        else:
            shape.integers_as_text.append((text or "", begin))
            shape.learnable = False
        shape.varints.append((begin, end - begin))
    elif field == 1 and wire == LENGTH and text:
        shape.texts.append((text, begin, min(end - begin, TEXT_BYTES)))
        shape.holes.append((begin, end - begin))
    elif field == 5 and wire == LENGTH and text:
        _first_of_list(shape, span, text, begin, end)


def _first_of_list(shape: Shape, span: bytes, text: str, at: int, until: int) -> None:
    """The first text of an ArrayValue."""
    for i, (field, wire, begin, end) in enumerate(fields(span, at, until)):
        shape.fields += 1
        if field == 1 and wire == LENGTH and i == 0:
            for kind, inner, value_at, value_end in fields(span, begin, end):
                if kind == 1 and inner == LENGTH:
                    shape.texts.append((text, value_at, min(value_end - value_at, TEXT_BYTES)))
                    shape.holes.append((value_at, value_end - value_at))
                else:
                    shape.learnable = False
        else:
            shape.learnable = False
            return


def _unwanted(shape: Shape, span: bytes, at: int, until: int) -> None:
    """Nobody asks for this value: any of the same kind and length may stand here in the next span."""
    tag = span[at] if until > at else 0
    if tag == 0x21 and until == at + 9:
        shape.holes.append((at + 1, 8))
    elif tag == 0x18:
        width = varint(span, at + 1)[1] - at - 1
        if at + 1 + width > until:
            raise OtlpError("a field is longer than its message")
        shape.varints.append((at + 1, width))
    elif tag & 7 == LENGTH and until > at:
        size, begin = varint(span, at + 1)
        if begin + size > until:
            raise OtlpError("a field is longer than its message")
        shape.holes.append((begin, size))


def put(columns: SpanColumns, row: int, span: bytes, shape: Shape) -> None:
    """Write one span into its row."""
    if shape.trace[1] == 16 and shape.span[1] == 8 and shape.parent[1] in (0, 8):
        (low,) = _UINT64_BIG.unpack_from(span, shape.trace[0] + 8)
        (own,) = _UINT64_BIG.unpack_from(span, shape.span[0])
        columns.trace[row], columns.span[row] = low, own
        columns.ids_good[row] = bool(own)
        if shape.parent[1]:
            (columns.parent[row],) = _UINT64_BIG.unpack_from(span, shape.parent[0])
    if shape.start >= 0:
        (columns.start_ns[row],) = _UINT64.unpack_from(span, shape.start)
    if shape.end >= 0:
        (columns.end_ns[row],) = _UINT64.unpack_from(span, shape.end)
    name_at, name_width = shape.name
    columns.name[row] = columns.name_code(span[name_at : name_at + min(name_width, TEXT_BYTES)])
    columns.kind[row], columns.failed[row] = shape.kind, shape.failed
    for key, at, _, double in shape.numbers:
        value = _DOUBLE.unpack_from(span, at)[0] if double else float(signed(varint(span, at)[0]))
        columns.number_column(key)[row] = value
    for key, at, width in shape.texts:
        columns.text_column(key)[row] = span[at : at + width]
    for key, at in shape.integers_as_text:
        columns.text_column(key)[row] = str(signed(varint(span, at)[0])).encode()
    columns.events.extend((row, name, at_ns) for name, at_ns in shape.events)
