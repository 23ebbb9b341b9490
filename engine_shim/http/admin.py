"""POST, GET and DELETE /admin/faults: begin, list and end faults while the engine runs.

Off unless `serve --admin`, and for loopback clients only, whatever address the server listens on: others get 404, as if
there were nothing. A browser's page must not reach it either, so requests with an Origin are refused.
"""

from __future__ import annotations

import ipaddress
import math

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine_shim.faults.live.faults import LiveFault, LiveFaults

PATH = "/admin/faults"
MAX_BODY_BYTES = 4096


class AdminRoute:
    """Answers the admin route, and passes everything else on to the server's application."""

    def __init__(self, app: ASGIApp, faults: LiveFaults) -> None:
        self._app, self._faults = app, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PATH or path.startswith(PATH + "/")):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = await self._answer(request) if _is_from_here(request) else _json({"error": "not found"}, 404)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        name = request.url.path.removeprefix(PATH).lstrip("/")
        if request.method == "GET" and not name:
            return _json({"faults": [_shown(listed) for listed in self._faults.listed()]})
        if request.method == "POST" and not name:
            return await self._begin(request)
        if request.method == "DELETE" and name.isdecimal() and len(name) < 10:
            ended = self._faults.end(int(name))
            return Response(status_code=204) if ended else _json({"error": f"there is no fault {name}"}, 404)
        return _json({"error": "POST a fault, GET the list, DELETE /admin/faults/NUMBER"}, 405)

    async def _begin(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _json({"error": f"the body is larger than {MAX_BODY_BYTES} bytes"}, 413)
        try:
            table = msgspec.json.decode(bytes(body), type=dict[str, str | float | int | bool])
            table.setdefault("at_s", 0)
            return _json(_shown(self._faults.add(table)), 201)
        except (msgspec.DecodeError, ValueError) as error:
            return _json({"error": str(error)}, 400)


def _is_from_here(request: Request) -> bool:
    if request.client is None or "origin" in request.headers:
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _shown(listed: LiveFault) -> dict[str, object]:
    until = getattr(listed.fault, "until", math.inf)
    return {
        "number": listed.number,
        **listed.table,
        "begins_at": listed.fault.at,
        "ends_at": until if math.isfinite(until) else None,
    }


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
