"""Runaway generation: a request without an end. Contexts are shifted again and again, a slot is never released.

The engine is healthy and busy; the request is not. One shift is a long answer, the same shift over and over is no answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clue import Clue, counted, not_this, told
from ..sighting import Sighting

SHIFTS = 3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that shifts contexts without an end."""
    for seen in s.engines:
        shift = seen.notices.get("context_shift")
        if shift is None or shift.count < SHIFTS:
            continue
        refused = seen.said("slot_unavailable", "queue_full")
        same = all(t.least == t.greatest for k, t in shift.numbers.items() if k in ("n_keep", "n_left", "n_discard"))
        dropped = shift.last("n_discard")
        span_s = shift.last_at - shift.first_at
        yield Clue(
            "runaway_generation",
            seen.subject,
            0.75 if same or refused else 0.6,
            f"{shift.count} context shifts{f' in {span_s:.0f} s' if span_s else ''}, all alike: a generation "
            f"without an end throws "
            "half of its context away and goes on; its slot is never free"
            + (f", and {refused} requests found no slot." if refused else "."),
            shift.first_at,
            "context_shift",
            "page" if refused else "ticket",
            "service",
            evidence=(
                counted("context_shift", shift.count, span_s),
                told(seen, "tokens thrown away each time", dropped),
                counted("slot_unavailable", refused),
            ),
            ruled_out=(
                not_this("engine_hang", "each shift follows thousands of generated tokens"),
                not_this("overload", "one request holds the slot, not many"),
            ),
            explains=("overload", "engine_hang"),
            named=True,
            look_next="which request has no output limit (n_predict, max_tokens) and no stop",
        )
