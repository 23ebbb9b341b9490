"""The engine's HTTP side: OpenAI's completion endpoints, health, and the pages for whoever watches the engine.

Bodies are bounded before they are parsed, errors are OpenAI error objects, and no text of a client is ever logged.
"""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine_shim import __version__
from engine_shim.clock import Clock
from engine_shim.engine.engine import RequestRejected
from engine_shim.http.answers import Answer
from engine_shim.http.degraded import CachedReply, RememberedReply
from engine_shim.http.protocol import ApiError, Ask, ServedModel, check_name, read_chat, read_completion
from engine_shim.http.refused import api_error, late_refusal
from engine_shim.http.reply import Reply, Speaker, StreamedReply, WholeReply
from engine_shim.http.response_cache import ResponseCache
from engine_shim.http.sender import Sender, sender_of
from engine_shim.http.worker import EngineWorker
from engine_shim.model.tokens import TextStream
from engine_shim.request import Request as EngineRequest

PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_PAGE_NAMES = 256

Page = Callable[[Sequence[str] | None], bytes]  # metric names to show (None: all) -> the page


@dataclass(frozen=True, slots=True)
class Pages:
    """What the engine shows to its watchers. `gpu` is None where no modelled device is there to speak for."""

    metrics: Page
    gpu: Callable[[], bytes] | None = None


class EngineServer:
    """The endpoints over one engine. `max_body_bytes` bounds every request body."""

    def __init__(
        self,
        model: ServedModel,
        worker: EngineWorker,
        pages: Pages,
        clock: Clock,
        max_body_bytes: int = 8 << 20,
        response_cache: ResponseCache | None = None,
    ) -> None:
        self._model = model
        self._worker = worker
        self._pages = pages
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._started_at = clock.now()
        self.around: list[Callable[[ASGIApp], ASGIApp]] = []  # wrapped around the application, the last one outermost
        self._salt = secrets.token_bytes(16)
        self.response_cache = ResponseCache(0) if response_cache is None else response_cache

    def app(self) -> ASGIApp:
        """The ASGI application; its lifespan starts and stops the engine's thread."""
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/metrics/", self.metrics),
            Route("/gpu/metrics", self.gpu_metrics),
        ]
        handlers = {
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_hangup,
            Exception: _on_bug,
        }
        app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        for wrap in self.around:
            app = wrap(app)
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._worker.start()
        try:
            yield
        finally:
            self._worker.stop()

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        arrived_at, sender = self._clock.now(), sender_of(request.headers, self._salt)
        return self._reply(read_completion(await self._body(request), self._model), sender, arrived_at)

    async def chat(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        arrived_at, sender = self._clock.now(), sender_of(request.headers, self._salt)
        return self._reply(read_chat(await self._body(request), self._model), sender, arrived_at)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        check_name(request.path_params["name"], self._model)
        return _json(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "engine_shim",
            "max_model_len": self._model.max_model_len,
        }

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while the engine's thread lives, 503 with the reason otherwise."""
        if self._worker.failure:
            raise ApiError(503, self._worker.failure, code="engine_dead")
        return _json({"status": "ok"})

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return _json({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, with `?name[]=` as Prometheus clients filter."""
        return Response(self._pages.metrics(_names(request)), media_type=PAGE_TYPE)

    async def gpu_metrics(self, request: Request) -> Response:
        """GET /gpu/metrics: what dcgm-exporter would show beside the modelled device."""
        if self._pages.gpu is None:
            return PlainTextResponse("no modelled device: ask the exporter of the real one\n", status_code=404)
        return Response(self._pages.gpu(), media_type=PAGE_TYPE)

    async def _body(self, request: Request) -> bytes:
        """The request's body; ApiError 413 as soon as it is known to be too large."""
        declared = request.headers.get("content-length", "0")
        body = bytearray()
        if not declared.isdecimal() or int(declared) <= self._max_body_bytes:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._max_body_bytes:
                    break
            else:
                return bytes(body)
        message = f"The body is larger than {self._max_body_bytes} bytes."
        raise ApiError(413, message, code="body_too_large")

    def _reply(self, ask: Ask, sender: Sender, arrived_at: float) -> ASGIApp:
        if self._worker.failure:
            raise ApiError(503, "The engine is not running.", code="engine_dead")
        request = EngineRequest(
            id=uuid.uuid4().hex,
            prompt_tokens=len(ask.prompt),
            max_tokens=ask.max_tokens,
            arrived_at=arrived_at,
            stop_after=ask.max_tokens,
            prompt=ask.prompt,
            tenant=ask.tenant,
            client=sender.client,
            deadline_at=arrived_at + (ask.deadline_s or sender.deadline_s),
            priority=ask.priority,
            sampling=ask.sampling,
        )
        eos_token_ids = () if ask.ignore_eos else self._model.eos_token_ids
        text = TextStream(self._model.tokenizer, ask.stop)
        key = self.response_cache.key(ask)
        reply: Speaker
        try:
            reply = Reply(self._worker.submit(request, text, eos_token_ids), self._worker.abort)
            if key is not None:
                reply = RememberedReply(reply, self.response_cache, key)
        except RequestRejected as error:
            kept = self.response_cache.find(key) if key is not None and late_refusal(error.refusal) else None
            if kept is None:
                raise api_error(error.refusal) from error
            reply = CachedReply(kept)
        answer = Answer(ask, request.id, self._model.name, arrived_at)
        return StreamedReply(reply, answer) if ask.stream else WholeReply(reply, answer)


def _names(request: Request) -> list[str] | None:
    return request.query_params.getlist("name[]")[:MAX_PAGE_NAMES] or None


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = _json(error.body(), error.status)
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(ApiError(error.status_code, error.detail).body(), error.status_code)


async def _on_hangup(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody is there to read it


async def _on_bug(request: Request, error: Exception) -> Response:
    # The server's own log prints the traceback; the client learns no more than that it is our fault.
    return _json(ApiError(500, "Internal error.").body(), 500)
