"""What an export may be at most, how it is unpacked, and the one error that says why it is none."""

from __future__ import annotations

import zlib

import msgspec


class OtlpError(ValueError):
    """A body that is no trace export, or too large to be read."""


class UnknownFormError(OtlpError):
    """A content type or an encoding that is not read."""


class TooLargeError(OtlpError):
    """More bytes than an export may have, as it came or once inflated."""


class TooManyFieldsError(OtlpError):
    """More fields than an honest export has: it would cost more time than it is worth."""


class OtlpLimits(msgspec.Struct, frozen=True):
    """What one export may be at most. Spans and attributes beyond are cut and counted, fields beyond refuse it."""

    body_bytes: int = 16 * 1024 * 1024
    spans: int = 50_000
    scopes: int = 2_000
    attributes: int = 512
    fields: int = 600_000


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its encoding (none, identity or gzip). OtlpError for another one, a bomb, or half a stream."""
    if len(body) > limit:
        raise TooLargeError(f"body of {len(body)} bytes; at most {limit} are read")
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return body
    if kind not in ("gzip", "x-gzip"):
        raise UnknownFormError(f"encoding {encoding[:40]!r}; gzip is read")
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise OtlpError(f"not gzip: {error}") from None
    if len(text) > limit:
        raise TooLargeError(f"more than {limit} bytes once inflated")
    if not inflate.eof:
        raise OtlpError("the gzip stream has no end")
    if inflate.unused_data:
        raise OtlpError("bytes after the end of the gzip stream")
    return text
