"""Every phrase that is looked for, of every engine, and the cut that keeps clients' texts from being read as telemetry.

A line is searched for literals (fast, linear); only where one stands, its reader looks at a bounded piece behind it.
"""

from __future__ import annotations

from . import deaths, device, errors
from .engines import llamacpp, lmdeploy, ollama, sglang, tgi, trtllm, vllm, vllm_events, vllm_start
from .found import Found, Phrase, Stats

PHRASES: tuple[Phrase, ...] = (
    *vllm.PHRASES,
    *vllm_events.PHRASES,
    *vllm_start.PHRASES,
    *sglang.PHRASES,
    *lmdeploy.PHRASES,
    *trtllm.PHRASES,
    *llamacpp.PHRASES,
    *tgi.PHRASES,
    *ollama.PHRASES,
    *device.PHRASES,
    *deaths.PHRASES,
    *errors.PHRASES,
)

_LITERALS = tuple(phrase.literal for phrase in PHRASES)
_QUOTES_CLIENTS = (
    "Received request ", "Added request ", "Generated response ", "Receive: obj=", "Finish: obj=", "Receive: ",
    "GenerateReqInput(", "prompt: '", 'prompt: "', "prompt='", 'prompt="', "prompt_token_ids", "input_ids=",
    "messages=", '"messages"', "inputs: \"", "output: '", 'output: "', ": Input: ", ": Output: ", "input=[", "generated_text",
)  # fmt: skip
"""From here on a line quotes what a client sent or was sent: nothing of it is looked at."""


def without_clients_text(text: str) -> str:
    """The line up to where it begins to quote a request or an answer."""
    cut = len(text)
    for marker in _QUOTES_CLIENTS:
        found = text.find(marker, 0, cut)
        if found >= 0:
            cut = found
    return text[:cut]


def says_something(text: str) -> bool:
    """Whether any phrase stands in a text."""
    return any(map(text.__contains__, _LITERALS))


def phrases_in(text: str) -> list[tuple[Phrase, int]]:
    """The phrases that stand in a text, and where."""
    return [(phrase, at) for phrase in PHRASES if (at := text.find(phrase.literal)) >= 0]


def look_at(text: str) -> list[tuple[Phrase, tuple[Found, ...]]]:
    """What the text says, phrase by phrase; a phrase whose payload is none says nothing."""
    return [(phrase, phrase.read(text, at)) for phrase, at in phrases_in(text)]


def worth(text: str) -> int:
    """How many fields of stats lines a text holds: a rejoined line holds more than its pieces."""
    return sum(f.fields for _, found in look_at(text) for f in found if isinstance(f, Stats))
