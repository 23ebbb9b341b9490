"""What clients get: OpenAI completion and chat objects, whole or as server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_shim.http.protocol import Ask

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


class Answer:
    """Builds the objects of one answer. `created_at` is in unix seconds; usage counts tokens."""

    def __init__(self, ask: Ask, request_id: str, model: str, created_at: float) -> None:
        self._chat = ask.chat
        self._include_usage = ask.include_usage
        self._prompt_tokens = len(ask.prompt)
        self._id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{request_id}"
        self._created = int(created_at)
        self._model = model

    def whole(self, text: str, reason: str, output_tokens: int, cached_tokens: int) -> bytes:
        """The JSON body of an answer that is not streamed."""
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        body = self._object("chat.completion" if self._chat else "text_completion", content, reason)
        return _encode(body | {"usage": self._usage(output_tokens, cached_tokens)})

    def opening(self) -> bytes:
        """The first event: chat streams begin with the role, completions with nothing."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self._chat else b""

    def piece(self, text: str) -> bytes:
        """An event with more text."""
        return self._chunk({"delta": {"content": text}} if self._chat else {"text": text}, None)

    def closing(self, reason: str, output_tokens: int, cached_tokens: int) -> bytes:
        """The last events: the finish reason, the usage where it was asked for, and the end mark."""
        last = self._chunk({"delta": {}} if self._chat else {"text": ""}, reason)
        if self._include_usage:
            body = self._object(self._chunk_kind(), {}, None) | {"choices": []}
            last += event(body | {"usage": self._usage(output_tokens, cached_tokens)})
        return last + DONE

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, content: dict[str, Any], reason: str | None) -> bytes:
        body = self._object(self._chunk_kind(), content, reason)
        return event(body | {"usage": None} if self._include_usage else body)

    def _object(self, kind: str, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": [choice]}

    def _usage(self, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": self._prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
