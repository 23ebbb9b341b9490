"""How what became of an export is said: in HTTP and in gRPC, as OTLP asks."""

from __future__ import annotations

from ..wire.grpc.message import Status
from ..wire.otlp.answer import refusal, response
from .span_intake import Taken, Verdict

PROTOBUF, JSON = "application/x-protobuf", "application/json"

_HTTP = {
    Verdict.TAKEN: 200, Verdict.BAD: 400, Verdict.UNKNOWN_FORM: 415, Verdict.TOO_LARGE: 413, Verdict.FULL: 503,
}  # fmt: skip
_GRPC = {
    Verdict.TAKEN: Status.OK, Verdict.BAD: Status.INVALID_ARGUMENT, Verdict.UNKNOWN_FORM: Status.UNIMPLEMENTED,
    Verdict.TOO_LARGE: Status.RESOURCE_EXHAUSTED, Verdict.FULL: Status.UNAVAILABLE,
}  # fmt: skip


def http_answer(taken: Taken, content_type: str) -> tuple[int, bytes, str]:
    """Status, body and content type: in the form in which the export came."""
    as_json = "json" in content_type.lower()
    status = _HTTP[taken.verdict]
    kind = JSON if as_json else PROTOBUF
    if status == 200:
        return status, response(taken.rejected, taken.why, as_json=as_json), kind
    return status, refusal(taken.why, as_json=as_json), kind


def grpc_answer(taken: Taken) -> tuple[Status, bytes, str]:
    """Status, message and what is wrong."""
    status = _GRPC[taken.verdict]
    message = response(taken.rejected, taken.why, as_json=False) if status == Status.OK else b""
    return status, message, taken.why
