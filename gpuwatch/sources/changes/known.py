"""What was last known of each subject, kept across a restart of the agent: else a rollout would look like a first sight.

One small JSON file in the agent's state folder, readable for its owner only, replaced as a whole. It also holds the key of
the fingerprints, drawn once. A file that cannot be used is begun anew, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...model import Subject

MOST_SUBJECTS = 1000
_LARGEST_BYTES = 4 * 1024 * 1024

Facts = dict[str, str]


class _File(msgspec.Struct):
    key: str
    known: dict[str, Facts] = {}


class KnownFacts:
    """Facts by subject and by who tells them. Without a `path` they live as long as the object."""

    def __init__(self, path: Path | None = None) -> None:
        self.failed = 0
        self._path = path
        self._known: dict[str, Facts] = {}
        self.key = os.urandom(16)
        self._load()

    def replace(self, subject: Subject, how: str, facts: Mapping[str, str]) -> Facts | None:
        """Remember, and return what was known before; None at first sight. ValueError where there is no more room."""
        name = f"{subject.key}|{how}"
        before = self._known.get(name)
        if before is None and len(self._known) >= MOST_SUBJECTS:
            raise ValueError("too many subjects")
        if before != facts:
            self._known[name] = dict(facts)
            self._save()
        return before

    def get(self, subject: Subject, how: str) -> Facts | None:
        """What is known."""
        return self._known.get(f"{subject.key}|{how}")

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                told = msgspec.json.decode(file.read(_LARGEST_BYTES), type=_File)
            self.key = bytes.fromhex(told.key)[:64] or self.key
            self._known = dict(list(told.known.items())[:MOST_SUBJECTS])
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.DecodeError):
            self.failed += 1

    def _save(self) -> None:
        if self._path is None:
            return
        beside = self._path.with_suffix(".new")
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(_File(self.key.hex(), self._known)))
            beside.replace(self._path)
        except OSError:
            self.failed += 1
