"""OTLP trace exports: from a body (protobuf or JSON, plain or gzip) to columns of the few attributes that are asked for.

Bounded before anything is built: body, inflated body, spans, attributes, fields. Garbage is an OtlpError with a reason
that a server can answer with. No attribute that nobody asks for leaves this package.
"""

from __future__ import annotations

from .body import OtlpError, OtlpLimits, TooLargeError, UnknownFormError, inflated
from .columns import Export, Scope, SpanColumns, Wanted
from .json_form import JsonReader
from .protobuf import ProtobufReader

__all__ = [
    "JSON", "PROTOBUF", "Export", "ExportReader", "OtlpError", "OtlpLimits", "Scope", "SpanColumns", "TooLargeError",
    "UnknownFormError", "Wanted",
]  # fmt: skip

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class ExportReader:
    """Reads exports of both forms; gets faster with each export of the same engine."""

    def __init__(self, wanted: Wanted, limits: OtlpLimits) -> None:
        self._limits = limits
        self._protobuf = ProtobufReader(wanted, limits)
        self._json = JsonReader(wanted, limits)

    def read(self, body: bytes, content_type: str, encoding: str = "") -> Export:
        """The spans of an export. OtlpError for anything else; never another error."""
        kind = content_type.partition(";")[0].strip().lower()
        if not kind:
            raise OtlpError(f"no content type; {PROTOBUF} and {JSON} are read")
        if kind not in (PROTOBUF, "application/protobuf", JSON):
            raise UnknownFormError(f"content type {kind[:60]!r}; {PROTOBUF} and {JSON} are read")
        body = inflated(body, encoding, self._limits.body_bytes)
        return self._json.read(body) if kind == JSON else self._protobuf.read(body)
