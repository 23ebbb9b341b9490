"""Asks an engine who it is, once after each start: version, model and limits that its page does not show.

A few small GETs, bounded in size and time, never more than three tries a life; what is refused is not asked again.
Adapters may come and go while the engine runs, and are asked for once a minute where the engine lists them. Only listed
fields are kept, options like those of a command line; adapters' names may be customers' and are fingerprinted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from ...dialects.about import ABOUT, ADAPTERS
from ...model import Batch, Info, Subject
from ...wire.http_get import Response, ScrapeClient, ScrapeError
from ..changes.arguments import argument_value, fingerprint
from ..facts import canonical_facts

_EVERY_S = 5.0
_ADAPTERS_EVERY_S = 60.0
_TRIES = 3
_ANSWER_BYTES = 1024 * 1024
_MOST_ADAPTERS = 10_000


class Engine(Protocol):
    """What is known of an engine by its page."""

    @property
    def subject(self) -> Subject: ...  # noqa: D102

    @property
    def lives(self) -> int:
        """Grows whenever it may be another: a restart, or an answer after a silence. 0 before its first page."""
        ...

    @property
    def dialect(self) -> str:
        """Which engine it is; empty while unknown."""
        ...


class SelfDescription:
    """Asks `engine` at `url`. `heard` is told what it says; `key` is that of the fingerprints."""

    role = "about"

    def __init__(
        self,
        engine: Engine,
        url: str,
        heard: Callable[[Info, str], None],
        key: bytes = b"",
        timeout_s: float = 2.0,
    ) -> None:
        parts = urlsplit(url)
        self.subject = engine.subject
        self.name = f"about:{engine.subject.engine}"
        self.interval_s = _EVERY_S
        self._engine = engine
        self._client = ScrapeClient(f"{parts.scheme}://{parts.netloc}", timeout_s, _ANSWER_BYTES)
        self._heard = heard
        self._key = key
        self._life = (0, "")
        self._tries = _TRIES
        self._adapters_due = math.inf
        self._refused = False

    async def poll(self, now: float) -> Batch:
        """Ask if there is something new to ask. A refusal is no failure: many engines say nothing of themselves."""
        life = self._engine.lives, self._engine.dialect
        if life != self._life and all(life):
            self._life, self._tries, self._adapters_due = life, 0, now
        said: list[Info] = []
        dropped = 0
        if self._tries < _TRIES:
            self._tries += 1
            facts, dropped = await self._describe(life[1])
            said += self._say(facts, "about", now)
        if now >= self._adapters_due:
            self._adapters_due = now + _ADAPTERS_EVERY_S
            said += self._say(await self._adapters(life[1]), "adapters", now)
        return Batch(self.name, self.role, self.subject, now, info=tuple(said), dropped=dropped)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    def _say(self, facts: dict[str, str], how: str, now: float) -> list[Info]:
        if not facts:
            return []
        info = Info(self.subject, now, facts)
        self._heard(info, how)
        return [info]

    async def _describe(self, dialect: str) -> tuple[dict[str, str], int]:
        """What the first path that answers says, and how much of it could not be read."""
        for asked in ABOUT.get(dialect, ()):
            told = await self._ask(asked.path)
            if told is None:
                continue
            self._tries = _TRIES
            if not isinstance(told, dict):
                return {}, 1
            return self._facts(told, asked.fields)
        return {}, 0

    async def _adapters(self, dialect: str) -> dict[str, str]:
        path = ADAPTERS.get(dialect)
        if path is None:
            self._adapters_due = math.inf
            return {}
        told = await self._ask(path)
        entries = told.get("data") if isinstance(told, dict) else None
        if not isinstance(entries, list):
            if told is not None or self._refused:
                self._adapters_due = math.inf  # until it is started again
            return {}
        models = [entry for entry in entries[:_MOST_ADAPTERS] if isinstance(entry, dict)]
        names = sorted(str(entry.get("id")) for entry in models if entry.get("parent"))
        return {"adapters": f"{len(names)} #{fingerprint(chr(10).join(names), self._key)}" if names else "none"}

    async def _ask(self, path: str) -> Any:
        """The decoded answer; None without one."""
        try:
            response: Response = await self._client.get(path)
        except ScrapeError:
            self._refused = False
            return None
        self._refused = 400 <= response.status < 500
        if response.status != 200:
            return None
        try:
            return msgspec.json.decode(response.body)
        except (msgspec.DecodeError, RecursionError):
            return ()

    def _facts(self, told: Mapping[str, Any], fields: Mapping[str, str]) -> tuple[dict[str, str], int]:
        found: dict[str, object] = {}
        for theirs, ours in fields.items():
            value = _inside(told, theirs)
            if value is None or isinstance(value, (dict, list)):
                continue
            if ours.startswith("arg_"):
                value = argument_value(ours[4:], str(value), self._key)
            found[ours] = value
        return canonical_facts(found)


def _inside(told: Any, path: str) -> Any:
    for name in path.split("."):
        told = told.get(name) if isinstance(told, dict) else None
    return told
