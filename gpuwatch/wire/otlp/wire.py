"""The protobuf wire format, as much of it as stepping over fields needs. OtlpError for what is none.

Fields are stepped over, not built: a hostile body costs time in proportion to its bytes and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from .body import OtlpError, TooManyFieldsError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 100_000
"""Of one message; spans of a scope and attributes of a span have bounds of their own."""

_WIDTH = {FIXED64: 8, FIXED32: 4}


def varint(body: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. IndexError beyond the body."""
    byte = body[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise OtlpError("a number of more than ten bytes")


def signed(value: int) -> int:
    """An int64 as it was meant: negative numbers come in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def step_over(body: bytes, wire: int, at: int, end: int) -> int:
    """Where the value of a field ends."""
    if wire == VARINT:
        at = varint(body, at)[1]
    elif wire == LENGTH:
        size, at = varint(body, at)
        at += size
    elif wire in _WIDTH:
        at += _WIDTH[wire]
    else:
        raise OtlpError(f"wire type {wire}")
    if at > end:
        raise OtlpError("a field is longer than its message")
    return at


def fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, begin and end of each value of a message; a length-delimited value without its length."""
    count = 0
    while at < end:
        count += 1
        if count > MOST_FIELDS:
            raise TooManyFieldsError(f"a message of more than {MOST_FIELDS} fields")
        tag, at = varint(body, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise OtlpError(f"field number {number}")
        if wire == LENGTH:
            size, at = varint(body, at)
            until = at + size
            if until > end:
                raise OtlpError("a field is longer than its message")
        else:
            until = step_over(body, wire, at, end)
        yield number, wire, at, until
        at = until
    if at != end:
        raise OtlpError("a field is longer than its message")
