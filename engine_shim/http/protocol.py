"""What clients may ask for: the OpenAI completion and chat bodies, read strictly where a value would be misunderstood.

Unknown keys are ignored, as clients of the API send many; a known key with a wrong type, an impossible value or a wish
that this engine cannot fulfil (n > 1, logprobs, tools, penalties, JSON) is an ApiError with the key's name: an answer that
silently is not what was asked for is worse. Messages never quote a prompt. Lengths are in tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from engine_shim.model.chat_template import ChatForm, OneLineATurn, UnfitConversationError
from engine_shim.model.sampling import Sampling
from engine_shim.model.tokens import Tokenizer

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_TENANT_CHARACTERS = 64
LONGEST_DEADLINE_S = 86_400
PLAIN_CHAT: ChatForm = OneLineATurn()
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions, as in OpenAI's API; chat answers may fill the context


class ApiError(Exception):
    """An answer that is an OpenAI error object. `param` is the key at fault, `code` OpenAI's word for the reason.

    `retry_after_s` says when to try again, where that is known.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON object that OpenAI clients raise their exceptions from."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error" if self.code == "rate_limit_exceeded" else "overloaded_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served: its name, its tokenizer and its limits."""

    name: str
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    kv_capacity_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    has_priorities: bool = False  # whether its scheduler tells classes apart
    chat: ChatForm = PLAIN_CHAT


@dataclass(frozen=True, slots=True)
class Ask:
    """A valid wish, from either endpoint. `prompt` is token ids."""

    chat: bool
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    ignore_eos: bool
    tenant: str
    priority: int = 0  # index into request.PRIORITY_CLASSES
    deadline_s: float | None = None  # from arrival to the first token


class StreamOptions(Struct):
    """`stream_options` of both endpoints."""

    include_usage: bool | None = None


class _Body(Struct, kw_only=True):
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    priority: int | None = None  # as vLLM has it: the higher, the later; above 0 is batch work here
    deadline_s: Annotated[float, Meta(gt=0, le=LONGEST_DEADLINE_S)] | None = None
    logprobs: bool | int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None

    # What this engine does not do, and the values that do not ask for it.
    asks_nothing: ClassVar[dict[str, tuple[Any, ...]]] = {
        "n": (None, 1), "logprobs": (None, False), "presence_penalty": (None, 0), "frequency_penalty": (None, 0),
        "logit_bias": (None, {}), "top_k": (None, -1, 0), "min_p": (None, 0), "repetition_penalty": (None, 1),
        "stop_token_ids": (None, []),
    }  # fmt: skip

    def unsupported(self, model: ServedModel) -> str | None:
        """The first key that asks for something this engine does not do."""
        if self.min_tokens and model.eos_token_ids and not self.ignore_eos:
            return "min_tokens"
        return next((key for key, nothing in self.asks_nothing.items() if getattr(self, key) not in nothing), None)


class CompletionBody(_Body, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    asks_nothing: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_Body.asks_nothing, "best_of": (None, 1), "echo": (None, False), "suffix": (None, ""),
    }  # fmt: skip


class Part(Struct):
    """One part of a message's content; only text is understood."""

    type: str
    text: str | None = None


class Message(Struct):
    """One turn of a conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None

    def text(self) -> str:
        """The message's text; ApiError for a part of another kind."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        if any(part.type != "text" or part.text is None for part in self.content):
            raise ApiError(400, "Only text parts are supported.", "messages")
        return "".join([part.text or "" for part in self.content])


class ChatBody(_Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    asks_nothing: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_Body.asks_nothing, "tools": (None, []), "functions": (None, []), "top_logprobs": (None, 0),
        "response_format": (None, {"type": "text"}),
    }  # fmt: skip


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`$")


def read_completion(raw: bytes, model: ServedModel) -> Ask:
    """A body of POST /v1/completions as an Ask; ApiError for whatever is wrong with it."""
    body = _decode(_COMPLETION, raw)
    _check(body, model)
    prompt = _prompt_ids(body.prompt, model)
    return _ask(body, model, prompt, body.max_tokens or DEFAULT_COMPLETION_TOKENS, chat=False)


def read_chat(raw: bytes, model: ServedModel) -> Ask:
    """A body of POST /v1/chat/completions as an Ask; ApiError for whatever is wrong with it.

    The model's chat form makes a prompt of the conversation (model/chat_template.py).
    """
    body = _decode(_CHAT, raw)
    _check(body, model)
    turns = [{"role": _role(message, i), "content": message.text()} for i, message in enumerate(body.messages)]
    try:
        text = model.chat.text(turns)
    except UnfitConversationError as error:
        raise ApiError(400, f"The model's chat template refuses the messages: {error}.", "messages") from error
    prompt = model.tokenizer.encode(text, add_special_tokens=not model.chat.brings_special_tokens)
    room = max(min(model.max_model_len, model.kv_capacity_tokens) - len(prompt), 1)
    return _ask(body, model, prompt, body.max_completion_tokens or body.max_tokens or room, chat=True)


def _role(message: Message, index: int) -> str:
    if message.role not in ROLES:
        supported = ", ".join(f"'{role}'" for role in ROLES)
        text = f"Invalid value: {message.role!r}. Supported values are: {supported}."
        raise ApiError(400, text, f"messages[{index}].role", "invalid_value")
    return message.role


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        text = str(error)
        path, missing = _PATH.search(text), _MISSING.match(text)
        key = re.split(r"[.\[]", path[1])[0] if path else missing[1] if missing else ""
        raise ApiError(400, text, key or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from error


def check_name(name: str, model: ServedModel) -> None:
    """ApiError if another model is meant."""
    if name != model.name:
        raise ApiError(404, f"The model `{name[:100]}` does not exist.", "model", "model_not_found")


def _check(body: _Body, model: ServedModel) -> None:
    if body.model is not None:
        check_name(body.model, model)
    key = body.unsupported(model)
    if key is not None:
        raise ApiError(400, f"This value of `{key}` is not supported.", key, "unsupported_value")
    if body.priority and not model.has_priorities:
        raise ApiError(400, "The engine does not schedule by priority.", "priority", "unsupported_value")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "`stream_options` needs `stream`.", "stream_options")


def _prompt_ids(prompt: str | list[str | int | list[int]], model: ServedModel) -> list[int]:
    """Token ids of a prompt in any of the API's four forms, of which batches may hold one prompt only."""
    one: str | list[int] | list[Any] = prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(400, "Only one prompt per request is supported.", "prompt", "unsupported_value")
        one = prompt[0]
    if isinstance(one, str):
        return model.tokenizer.encode(one)
    ids = [token for token in one if isinstance(token, int)]
    if len(ids) < len(one):
        raise ApiError(400, "A prompt is either text or token ids.", "prompt")
    if ids and not (min(ids) >= 0 and max(ids) < model.vocab_size):
        raise ApiError(400, f"Token ids must lie in [0, {model.vocab_size}).", "prompt")
    return ids


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS or not all(0 < len(text) <= MAX_STOP_CHARACTERS for text in stops):
        message = f"At most {MAX_STOPS} stop strings of 1 to {MAX_STOP_CHARACTERS} characters are supported."
        raise ApiError(400, message, "stop")
    return stops


def _ask(body: _Body, model: ServedModel, prompt: list[int], max_tokens: int, *, chat: bool) -> Ask:
    if not prompt:
        raise ApiError(400, "The prompt has no tokens.", "messages" if chat else "prompt")
    if len(prompt) + max_tokens > model.max_model_len:
        message = (
            f"This model's maximum context length is {model.max_model_len} tokens; the request asks for "
            f"{len(prompt)} prompt tokens and {max_tokens} output tokens."
        )
        raise ApiError(400, message, "messages" if chat else "prompt", "context_length_exceeded")
    sampling = Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=random.getrandbits(63) if body.seed is None else body.seed,
    )
    return Ask(
        chat=chat,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        stop=_stops(body.stop),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        ignore_eos=bool(body.ignore_eos),
        tenant=(body.user or "")[:MAX_TENANT_CHARACTERS],
        priority=int((body.priority or 0) > 0),
        deadline_s=body.deadline_s,
    )
