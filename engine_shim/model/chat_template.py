"""How a conversation becomes the text of a prompt: one line a turn, or a checkpoint's own chat template.

A template is a program that came with the weights, so it runs in Jinja's sandbox: it sees the messages, the names of special
tokens and the date, and can change nothing. It writes its special tokens itself; the tokenizer must not add them again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jinja2 import Environment

Turn = Mapping[str, str]  # its `role` and its `content`

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LONGEST_COMPLAINT = 200


class UnfitConversationError(Exception):
    """The template does not take these messages; the text says why, in the template's own words where it has some."""


class ChatForm(Protocol):
    """Writes a conversation down, up to the beginning of the answer."""

    brings_special_tokens: bool

    def text(self, turns: Sequence[Turn]) -> str:
        """The prompt. Raises UnfitConversationError."""
        ...


class OneLineATurn:
    """`role: text`, and the answer's beginning: for a model that has no template."""

    brings_special_tokens = False

    def text(self, turns: Sequence[Turn]) -> str:
        """See ChatForm."""
        return "".join([f"{turn['role']}: {turn['content']}\n" for turn in turns]) + "assistant:"


class ChatTemplate:
    """A checkpoint's template. `names` are what it may refer to besides the messages; `now` is Unix time, for its date."""

    brings_special_tokens = True

    def __init__(self, source: str, names: Mapping[str, str], now: Callable[[], float]) -> None:
        from jinja2 import TemplateSyntaxError

        self._names = dict(names)
        try:
            self._template = _environment(now).from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template cannot be read: line {error.lineno}: {error.message}") from None

    def text(self, turns: Sequence[Turn]) -> str:
        """See ChatForm."""
        messages = [dict(turn) for turn in turns]
        try:
            return self._template.render(
                self._names, messages=messages, add_generation_prompt=True, tools=None, documents=None
            )
        except UnfitConversationError:
            raise
        except Exception as error:  # a template is a program: whatever it does wrong, the conversation did not suit it
            raise UnfitConversationError(f"it failed with {type(error).__name__}") from error


def chat_form(folder: Path | None, now: Callable[[], float]) -> ChatForm:
    """The template of a model folder, or one line a turn. ValueError names the file that cannot be read."""
    if folder is None:
        return OneLineATurn()
    config = _config(folder / CONFIG_FILE)
    path = folder / TEMPLATE_FILE
    try:
        source = path.read_text(encoding="utf-8") if path.is_file() else _configured(config)
        if source is None:
            return OneLineATurn()
        return ChatTemplate(source, _special_tokens(config), now)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path if path.is_file() else folder / CONFIG_FILE}: {error}") from error


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: is not a JSON object")
    return config


def _configured(config: Mapping[str, Any]) -> str | None:
    """The template of a tokenizer_config.json: a text, or the one called `default` of several."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ValueError("chat_template is no text, nor a list with one called default")
    return template


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Their texts by the names that templates use. A token is given as its text, or as an object that has it."""
    out = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            out[name] = text
    return out


def _environment(now: Callable[[], float]) -> Environment:
    """What templates expect of those who run them, which is what `transformers` gives them."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks answers for training; here it means its contents."""

        tags = {"generation"}  # noqa: RUF012  (Jinja's interface)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _complain
    environment.globals["strftime_now"] = lambda form: time.strftime(form, time.gmtime(now()))
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _complain(message: object) -> None:
    raise UnfitConversationError(str(message)[:_LONGEST_COMPLAINT])
