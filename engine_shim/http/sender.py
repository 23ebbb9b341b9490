"""Who sends a request and how long it waits, from the request's HTTP headers.

`Authorization: Bearer KEY` names the sender for the rate limit: any key is accepted, and only a salted hash of it is
kept. `X-Deadline-Seconds` says how many seconds the client waits for the first token; the body's `deadline_s` wins.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from .protocol import LONGEST_DEADLINE_S, ApiError

DEADLINE_HEADER = "x-deadline-seconds"


@dataclass(frozen=True, slots=True)
class Sender:
    """`client` is empty without a key; `deadline_s` is infinite where the client sets no limit."""

    client: str
    deadline_s: float


def sender_of(headers: Mapping[str, str], salt: bytes) -> Sender:
    """From headers with lower-case names. ApiError if the deadline is no number of seconds."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    client = ""
    if scheme.lower() == "bearer" and key.strip():
        client = hashlib.blake2b(key.strip().encode(), key=salt, digest_size=8).hexdigest()
    return Sender(client, _deadline_seconds(headers.get(DEADLINE_HEADER)))


def _deadline_seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_DEADLINE_S:
        message = f"`{DEADLINE_HEADER}` must be a number of seconds above 0 and at most {LONGEST_DEADLINE_S}."
        raise ApiError(400, message, DEADLINE_HEADER)
    return seconds
