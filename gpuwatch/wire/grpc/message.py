"""A gRPC message on the wire (a flag, a length, the bytes) and the codes that answer it."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote, unquote

PREFIX_BYTES = 5


class Status(IntEnum):
    """The codes that are used here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


RETRYABLE = frozenset({
    Status.CANCELLED, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED, Status.ABORTED, Status.OUT_OF_RANGE,
    Status.UNAVAILABLE, Status.DATA_LOSS,
})  # fmt: skip
"""Codes after which OTLP asks to try again; exhausted quotas, too, since nothing is lost by trying."""


class GrpcError(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        self.why = why
        super().__init__(f"grpc-status {int(status)}: {why}")


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A message with its flag and length."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def unframed(stream: bytes, encoding: str) -> tuple[bytes, str]:
    """The one message of a stream and how it is compressed ("" or what `encoding` says). GrpcError for anything else."""
    if len(stream) < PREFIX_BYTES:
        raise GrpcError(Status.INTERNAL, "the stream ended before a message")
    flag, size = stream[0], int.from_bytes(stream[1:PREFIX_BYTES], "big")
    if len(stream) < PREFIX_BYTES + size:
        raise GrpcError(Status.INTERNAL, "the stream ended in the middle of a message")
    if len(stream) > PREFIX_BYTES + size:
        raise GrpcError(Status.INTERNAL, "more than one message")
    if flag not in (0, 1):
        raise GrpcError(Status.INTERNAL, f"compression flag {flag}")
    if not flag:
        return stream[PREFIX_BYTES:], ""
    if encoding in ("", "identity"):
        raise GrpcError(Status.INTERNAL, "a compressed message without grpc-encoding")
    return stream[PREFIX_BYTES:], encoding


def encoded_text(text: str) -> str:
    """A status message as a header may carry it."""
    return quote(text[:300], safe=" !#$&'()*+,/:;=?@[]-_.~\"<>|{}^`")


def decoded_text(text: str) -> str:
    """A status message as it was meant."""
    return unquote(text)[:300]
