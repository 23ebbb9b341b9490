"""The receivers of spans, built from the configuration: the desk that takes exports, and gRPC in front of it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ..config import Config, ConfigError, host_port
from ..sources.spans.decoder import SpanDecoder
from ..sources.spans.inbox import SpanInbox
from ..sources.spans.subjects import SpanSubjects
from ..wire.otlp import OtlpLimits
from .http import bind
from .otlp_status import PROTOBUF, grpc_answer
from .span_intake import SpanDesk

if TYPE_CHECKING:
    from ..wire.grpc.server import Answer, GrpcServer

log = logging.getLogger(__name__)

_HTTP_PORT = 4318
AUTO = "auto"


def span_desk(config: Config, inbox: SpanInbox) -> SpanDesk:
    """What becomes of an export."""
    subjects = SpanSubjects(config.engines)
    decoder = SpanDecoder(
        subjects.subject_of, os.urandom(16), OtlpLimits(body_bytes=config.bounds.otlp_body_bytes), subjects.is_named,
        subjects.attributes,
    )  # fmt: skip
    forwarder = None
    if config.forward_traces_url:
        from ..sinks.trace_forwarder import Forwarder

        forwarder = Forwarder(config.forward_traces_url, config.lanes.timeout_s)
    return SpanDesk(decoder, inbox, forwarder)


def grpc_server(config: Config, desk: SpanDesk) -> GrpcServer | None:
    """The gRPC receiver, or None where it is off, h2 is not installed, or its usual address is taken (both are said).

    Raises ConfigError where an address that was asked for cannot be had.
    """
    if not config.otlp_grpc_listen:
        return None
    listen = grpc_address(config)
    try:
        from ..wire.grpc import EXPORT_TRACES
        from ..wire.grpc.server import GrpcServer
    except ModuleNotFoundError as error:
        log.warning("no OTLP over gRPC: the package %s is not installed; HTTP on %s", error.name, config.otlp_listen)
        return None
    try:
        sock = bind(listen, "otlp_grpc_listen")
    except ConfigError as error:
        if config.otlp_grpc_listen != AUTO:
            raise
        log.warning("no OTLP over gRPC: %s; HTTP on %s", error, config.otlp_listen)
        return None
    return GrpcServer(
        sock, EXPORT_TRACES, lambda message, encoding: _take(desk, message, encoding), config.bounds.otlp_body_bytes
    )


def grpc_address(config: Config) -> str:
    """Where gRPC is served: as configured, or on the host of `otlp_listen`, on 4317 or one port below its own."""
    if config.otlp_grpc_listen != AUTO:
        return config.otlp_grpc_listen
    host, port = host_port(config.otlp_listen)
    return f"[{host}]:{max(0, port - 1)}" if ":" in host else f"{host}:{max(0, port - 1)}"


def _take(desk: SpanDesk, message: bytes, encoding: str) -> Answer:
    from ..wire.grpc.server import Answer

    status, answer, why = grpc_answer(desk.take(message, PROTOBUF, encoding))
    return Answer(status, answer, why)
