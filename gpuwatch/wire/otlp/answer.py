"""ExportTraceServiceResponse: empty where all was taken, a partial success where spans were refused."""

from __future__ import annotations

import msgspec


def response(rejected: int, why: str, *, as_json: bool) -> bytes:
    """The body of an answer to an accepted export. `rejected` spans were refused because of `why`."""
    if as_json:
        partial = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": why}} if rejected else {}
        return msgspec.json.encode(partial)
    if not rejected:
        return b""
    text = why.encode()
    partial_success = b"\x08" + _varint(rejected) + b"\x12" + _varint(len(text)) + text
    return b"\x0a" + _varint(len(partial_success)) + partial_success


def refusal(why: str, *, as_json: bool) -> bytes:
    """A google.rpc.Status with a message: what OTLP/HTTP wants in the body of a 4xx or 5xx."""
    if as_json:
        return msgspec.json.encode({"message": why})
    text = why.encode()
    return b"\x12" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
