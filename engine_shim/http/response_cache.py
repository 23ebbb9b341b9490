"""Degraded mode: answers of earlier requests, for those that an overloaded engine refuses.

Opt-in, and only for requests whose answer is the same each time: temperature 0. An answer is found by a salted hash of
the prompt's token ids and of everything else that it depends on; the prompt itself is not kept, and the answer is kept in
memory only, for `entries` requests, the ones used longest ago forgotten first. None of it is in telemetry but counts.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .protocol import Ask

LONGEST_ANSWER = 65_536  # characters; longer ones are not kept


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What a request was answered. `finish_reason` is stop or length."""

    text: str
    output_tokens: int
    finish_reason: str


class ResponseCache:
    """Belongs to the event loop's thread. `entries` 0 keeps nothing."""

    def __init__(self, entries: int, salt: bytes | None = None) -> None:
        self._entries = entries
        self._salt = salt or secrets.token_bytes(16)
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self.given = 0  # answers that were found for refused requests

    def __len__(self) -> int:
        return len(self._answers)

    def key(self, ask: Ask) -> bytes | None:
        """What the answer is found by; None where it may differ from time to time, or nothing is kept."""
        if not self._entries or ask.sampling.temperature > 0:
            return None
        rest = msgspec.json.encode((ask.max_tokens, ask.stop, ask.ignore_eos))
        return hashlib.blake2b(array("q", ask.prompt).tobytes() + rest, key=self._salt, digest_size=16).digest()

    def keep(self, key: bytes, answer: KeptAnswer) -> None:
        """Remember an answer that was given in full."""
        if len(answer.text) > LONGEST_ANSWER:
            return
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > self._entries:
            self._answers.popitem(last=False)

    def find(self, key: bytes) -> KeptAnswer | None:
        """The answer to an equal request, which counts as given."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
            self.given += 1
        return answer
