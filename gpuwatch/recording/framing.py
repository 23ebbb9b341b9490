"""Frames in a file: `u32 length · u32 crc32 · payload`, little-endian, appended one after the other.

A frame is whole or it is not there: a reader stops at the first one that is cut or whose checksum is wrong, and says at
which byte. What comes before is sound.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

_HEAD = struct.Struct("<II")
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A longer length field is damage, not data."""


class TornError(Exception):
    """A frame that is cut or damaged. `offset` is the byte at which it starts."""

    def __init__(self, offset: int, why: str) -> None:
        self.offset = offset
        self.why = why
        super().__init__(f"{why} at byte {offset}")


def frame(payload: bytes) -> bytes:
    """The payload with its length and checksum in front."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def frames(data: bytes | memoryview, offset: int = 0) -> Iterator[bytes]:
    """The payloads of all whole frames from `offset` on. Raises TornError at the first that is not whole."""
    view = memoryview(data)
    while offset < len(view):
        if offset + _HEAD.size > len(view):
            raise TornError(offset, "the last frame is cut")
        length, crc = _HEAD.unpack_from(view, offset)
        start = offset + _HEAD.size
        if length > MAX_FRAME_BYTES:
            raise TornError(offset, "a frame of impossible length")
        if start + length > len(view):
            raise TornError(offset, "the last frame is cut")
        payload = bytes(view[start : start + length])
        if zlib.crc32(payload) != crc:
            raise TornError(offset, "a frame with a wrong checksum")
        yield payload
        offset = start + length
