"""Where exports are taken, whichever protocol brought them: decoded, put into the inbox, passed on to the collector."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ..sinks.trace_forwarder import Forwarder
    from ..sources.spans.decoder import SpanDecoder
    from ..sources.spans.inbox import SpanInbox

_WHY_CHARS = 200
_WORDS = {
    "bad_ids": "with ids of a wrong length",
    "bad_times": "with times that are none",
    "too_many": "too many for one export",
}


class Verdict(Enum):
    """What became of an export."""

    TAKEN = "taken"
    BAD = "bad"
    UNKNOWN_FORM = "unknown form"
    TOO_LARGE = "too large"
    FULL = "full"


class Taken(msgspec.Struct, frozen=True):
    """The answer to an export: `rejected` spans of it were refused because of `why`; the others are in."""

    verdict: Verdict
    rejected: int = 0
    why: str = ""


class SpanDesk:
    """Takes exports. `counts`: exports, refused, full. What is not taken is not passed on: its sender tries again."""

    def __init__(self, decoder: SpanDecoder, inbox: SpanInbox, forwarder: Forwarder | None = None) -> None:
        self.decoder = decoder
        self.inbox = inbox
        self.forwarder = forwarder
        self.counts: Counter[str] = Counter()

    def take(self, body: bytes, content_type: str, encoding: str) -> Taken:
        """Take one export as it came; never raises."""
        from ..wire.otlp import OtlpError, TooLargeError, UnknownFormError

        try:
            decoded = self.decoder.decode(body, content_type, encoding)
        except OtlpError as error:
            self.counts["refused"] += 1
            kinds = ((UnknownFormError, Verdict.UNKNOWN_FORM), (TooLargeError, Verdict.TOO_LARGE))
            verdict = next((verdict for kind, verdict in kinds if isinstance(error, kind)), Verdict.BAD)
            return Taken(verdict, why=str(error)[:_WHY_CHARS])
        if not self.inbox.put(decoded):
            self.counts["full"] += 1
            return Taken(Verdict.FULL, why="too many spans wait")
        self.counts["exports"] += 1
        if self.forwarder is not None:
            self.forwarder.offer(body, content_type, encoding)
        if not decoded.dropped:
            return Taken(Verdict.TAKEN)
        why = ", ".join(
            f"{decoded.reasons[reason]} {words}" for reason, words in _WORDS.items() if decoded.reasons[reason]
        )
        return Taken(Verdict.TAKEN, decoded.dropped, why)
