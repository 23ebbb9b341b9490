"""What a span dialect is: data that says how one engine's spans tell of a request and its stages.

An engine is detected by the scope, the resource attributes, the span attributes or the span names that only it uses,
never by its version. Durations are seconds once multiplied by their factor. The same attribute means different things
in different engines, so nothing is shared between dialects.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

FACTS = (
    "ttft_s", "e2e_s", "queue_s", "prefill_s", "decode_s", "front_s", "transfer_s", "prompt_tokens", "output_tokens",
    "cached_tokens", "rank",
)  # fmt: skip
"""What a span may say in numbers. `front_s`: from the arrival until the engine has the request."""


class Said(msgspec.Struct, frozen=True):
    """The attributes that say a fact, newest name first, and the factor that makes base units of their numbers.

    `as_text`: a duration as text with its unit, such as `12.5ms` (Rust's Debug form).
    """

    attributes: tuple[str, ...]
    factor: float = 1.0
    as_text: bool = False


class SpanDialect(msgspec.Struct, frozen=True):
    """How one engine traces. Names are regular expressions over the whole name of a span.

    - `scopes`, `services` are beginnings of the instrumentation scope and of `service.name`; `resource` and `marks` are
      attributes (of the resource, of a span) that only this engine sets.
    - `roots` are spans of a whole request; where `root_has` is set, only those with that attribute.
    - `stages` are spans below it; `first_stages`: only the first such span of a request is that stage, the others are
      what `stages` says. `passes` are spans that only hold others, or details of a stage: neither lost nor foreign.
    - `retracted`: an event that sends a running request back to the queue.
    - `prefill_holds_queue`: what the engine calls prefill begins at the dispatch, waiting included.
    - `scattered`: the spans of a tree hang together over several steps and may come from several processes, so it is
      looked at once it is quiet. `has_children`: a root without stages below it waits for them as long.
    - `hashed_ids`: its request ids are salted hashes already, the same as in its step ring.
    """

    name: str
    about: str
    roots: tuple[str, ...]
    facts: dict[str, Said]
    scopes: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    resource: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    root_has: str = ""
    request_id: tuple[str, ...] = ("gen_ai.request.id",)
    outcome: tuple[str, ...] = ("gen_ai.response.finish_reasons",)
    stages: dict[str, str] = {}
    first_stages: dict[str, str] = {}
    passes: tuple[str, ...] = ()
    retracted: str = ""
    prefill_holds_queue: bool = False
    scattered: bool = False
    has_children: bool = False
    hashed_ids: bool = False

    def number_attributes(self) -> set[str]:
        """Attributes read as numbers."""
        return {a for said in self.facts.values() if not said.as_text for a in said.attributes}

    def text_attributes(self) -> set[str]:
        """Attributes read as texts: hashed, parsed as a duration, or matched against a fixed set; never kept."""
        durations = {a for said in self.facts.values() if said.as_text for a in said.attributes}
        signs = {self.root_has, *self.marks} - self.number_attributes() - {""}
        return durations | signs | {*self.request_id, *self.outcome}


class Names:
    """What the name of a span means in one dialect; each distinct name is matched once."""

    def __init__(self, dialect: SpanDialect) -> None:
        self._roots = one_of(dialect.roots)
        self._passes = one_of(dialect.passes)
        self._stages = dialect.stages
        self._known: dict[bytes, tuple[bool, str, bool]] = {}

    def of(self, name: bytes) -> tuple[bool, str, bool]:
        """Whether it is a root, the stage it is ("" for none), whether it belongs to a request's tree at all."""
        known = self._known.get(name)
        if known is None:
            text = name.decode("utf-8", "replace")
            root = bool(self._roots.fullmatch(text))
            stage = self._stages.get(text, "")
            known = root, stage, root or bool(stage) or bool(self._passes.fullmatch(text))
            if len(self._known) >= 4096:  # names made of request ids
                self._known.clear()
            self._known[name] = known
        return known


@cache
def one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """The names that fit one of these expressions; none fits where there is none."""
    return re.compile("|".join(patterns) if patterns else r"(?!)", re.DOTALL)
