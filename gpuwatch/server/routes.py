"""The agent's HTTP: `/metrics`, `/gpu/metrics`, `/healthz`, `/readyz`, the JSON API, and OTLP spans in.

Who may: health, metrics and device readings, whoever reaches the port. The API and `/v1/traces` on the agent's own port:
the loopback, or a bearer token where one is configured. A browser on the same machine is not trusted: without a token the
Host header must name the loopback (DNS rebinding), and a POST with a foreign Origin is refused. Bodies and their time are
bounded.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..model import Incident, Transition

BODY_TIMEOUT_S = 10.0
MOST_INCIDENTS = 1000
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_json = msgspec.json.encode


class Announced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /api/v1/changes`: what someone did, to one engine or to all. `at` is unix seconds, default now."""

    what: str = "change"
    engine: str = ""
    at: float | None = None
    detail: dict[str, str] = {}


class AnnouncedMaintenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /api/v1/maintenance`: a window in unix seconds; `from_at` defaults to now."""

    until_at: float
    from_at: float | None = None
    engine: str = ""
    reason: str = ""


class Desk(Protocol):
    """What the server asks of the agent."""

    def metrics(self) -> str: ...  # noqa: D102
    def gpu_metrics(self) -> str: ...  # noqa: D102
    def readiness(self) -> tuple[bool, dict[str, Any]]: ...  # noqa: D102
    def incidents(self, limit: int, only_open: bool) -> Sequence[Incident]: ...  # noqa: D102
    def incident(self, id: str) -> tuple[Incident, Sequence[Transition]] | None: ...  # noqa: D102
    def state_json(self) -> bytes: ...  # noqa: D102
    def verdict_json(self) -> bytes: ...  # noqa: D102
    def announce_change(self, change: Announced) -> None:
        """Raises ValueError with what is wrong."""

    def announce_maintenance(self, window: AnnouncedMaintenance) -> None:
        """Raises ValueError with what is wrong."""

    def take_traces(self, body: bytes, content_type: str, encoding: str) -> tuple[int, bytes, str]: ...  # noqa: D102


class Guard:
    """Who may use the API, and how much they may send. `token` empty: the loopback only."""

    def __init__(self, token: Callable[[], str], body_bytes: int) -> None:
        self._token = token
        self.body_bytes = body_bytes

    def check(self, request: Request) -> None:
        """Raises HTTPException 401 or 403."""
        token = self._token()
        given = request.headers.get("authorization", "")
        if token and hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return
        if not _is_loopback(request.client.host if request.client else ""):
            raise HTTPException(401 if token else 403, "loopback or token only")
        if not _is_loopback(_host_of("//" + request.headers.get("host", ""))):
            raise HTTPException(403, "the Host header does not name the loopback")
        origin = request.headers.get("origin")
        if request.method == "POST" and origin is not None and not _is_loopback(_host_of(origin)):
            raise HTTPException(403, "a foreign Origin may not post")


def api_app(desk: Desk, guard: Guard, otlp_body_bytes: int) -> Starlette:
    """The agent's own port."""
    api = _Api(desk, guard)

    async def traces(request: Request) -> Response:
        guard.check(request)
        return await _take_traces(desk, request, otlp_body_bytes)

    routes: list[BaseRoute] = [
        Route("/metrics", api.metrics),
        Route("/gpu/metrics", api.gpu_metrics),
        Route("/healthz", api.health),
        Route("/readyz", api.ready),
        Route("/api/v1/incidents", api.guarded(api.incidents)),
        Route("/api/v1/incidents/{id}", api.guarded(api.incident)),
        Route("/api/v1/state", api.guarded(api.state)),
        Route("/api/v1/verdict", api.guarded(api.verdict)),
        Route("/api/v1/changes", api.guarded(api.change), methods=["POST"]),
        Route("/api/v1/maintenance", api.guarded(api.maintenance), methods=["POST"]),
        Route("/v1/traces", traces, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refuse})


def otlp_app(desk: Desk, otlp_body_bytes: int) -> Starlette:
    """The OTLP port: spans in and nothing else."""

    async def traces(request: Request) -> Response:
        return await _take_traces(desk, request, otlp_body_bytes)

    return Starlette(
        routes=[Route("/v1/traces", traces, methods=["POST"])], exception_handlers={HTTPException: _refuse}
    )


class _Api:
    """The handlers of the agent's port."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._desk = desk
        self._guard = guard

    def guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def check_first(request: Request) -> Response:
            self._guard.check(request)
            return await handler(request)

        return check_first

    async def metrics(self, request: Request) -> Response:
        return Response(self._desk.metrics(), media_type=_METRICS_TYPE)

    async def gpu_metrics(self, request: Request) -> Response:
        return Response(self._desk.gpu_metrics(), media_type=_METRICS_TYPE)

    async def health(self, request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(self, request: Request) -> Response:
        ready, detail = self._desk.readiness()
        return _answer(detail, 200 if ready else 503)

    async def incidents(self, request: Request) -> Response:
        try:
            limit = min(MOST_INCIDENTS, max(1, int(request.query_params.get("limit", "100"))))
        except ValueError:
            raise HTTPException(400, "limit: not a number") from None
        found = self._desk.incidents(limit, request.query_params.get("status") == "open")
        return _answer({"incidents": found})

    async def incident(self, request: Request) -> Response:
        found = self._desk.incident(request.path_params["id"])
        if found is None:
            raise HTTPException(404, "no such incident")
        return _answer({"incident": found[0], "transitions": [{"kind": t.kind, "at": t.at} for t in found[1]]})

    async def state(self, request: Request) -> Response:
        return Response(self._desk.state_json(), media_type="application/json")

    async def verdict(self, request: Request) -> Response:
        return Response(self._desk.verdict_json(), media_type="application/json")

    async def change(self, request: Request) -> Response:
        change = await self._body(request, Announced)
        return _accepted(lambda: self._desk.announce_change(change))

    async def maintenance(self, request: Request) -> Response:
        window = await self._body(request, AnnouncedMaintenance)
        return _accepted(lambda: self._desk.announce_maintenance(window))

    async def _body(self, request: Request, kind: type[Any]) -> Any:
        """The body as a struct. HTTPException 400 or 413."""
        body = await read_body(request, self._guard.body_bytes)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HTTPException(400, str(error)) from error


async def read_body(request: Request, limit: int) -> bytes:
    """The body, bounded in size and time. HTTPException 413 or 408."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limit:
        raise HTTPException(413, f"the body may have {limit} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise HTTPException(413, f"the body may have {limit} bytes")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "the body did not come in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client went away") from None
    return b"".join(parts)


async def _take_traces(desk: Desk, request: Request, limit: int) -> Response:
    body = await read_body(request, limit)
    headers = request.headers
    status, answer, kind = desk.take_traces(body, headers.get("content-type", ""), headers.get("content-encoding", ""))
    return Response(answer, status, media_type=kind)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer({"error": error.detail}, error.status_code)


def _answer(value: object, status: int = 200) -> Response:
    return Response(_json(value), status, media_type="application/json")


def _accepted(announce: Callable[[], None]) -> Response:
    """202, or 400 with what the desk has against it."""
    try:
        announce()
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    return _answer({"accepted": True}, 202)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
