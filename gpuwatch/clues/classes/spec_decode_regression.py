"""Speculation that does not pay: drafts are rejected, or accepted and still slower than plain decoding.

Acceptance is not the criterion. Steps per second = output rate ÷ mean acceptance length: where the same log or page shows
the service with and without drafts, the rates decide. Without such a comparison high acceptance proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import Moment, moments
from ..sighting import Sighting
from ..track import Sight

SLOWER = 0.77
POOR = 0.35
TOGETHER_S = 2.0


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that drafts."""
    for seen in s.engines:
        found = _compared(seen) or _rejected(seen)
        if found is not None:
            yield found


def _compared(seen: Sight) -> Clue | None:
    """Looks beside a draft report against looks without one, for the same number of running requests."""
    said = seen.notices.get("spec_decode")
    if said is None:
        return None
    looks = [m for m in moments(seen) if m.each > 0]
    drafted = [m for m in looks if any(abs(m.at - t) <= TOGETHER_S for t in said.times)]
    plain = [m for m in looks if all(abs(m.at - t) > TOGETHER_S for t in said.times)]
    pairs = [(d, p) for d in drafted for p in plain if p.running == d.running]
    if not pairs:
        return None
    d, p = min(pairs, key=lambda pair: pair[0].each / pair[1].each)
    length, share = said.last("mean_acceptance_length"), said.last("acceptance_ratio")
    if d.each > SLOWER * p.each:
        return None
    steps = "" if math.isnan(length) else f" ({_step_ms(d, length):.1f} ms a step against {1000 / p.each:.1f} ms)"
    return Clue(
        "spec_decode_regression",
        seen.subject,
        0.65,
        f"With drafts each running request gets {d.each:.0f} tokens/s, without {p.each:.0f}{steps}"
        + (
            f"; {share:.0%} of the drafts are accepted, so drafting and verifying cost more than they save."
            if share >= 0.5
            else "."
        ),
        said.first_at,
        "overhead" if share >= 0.5 else "rejected",
        "ticket",
        "speed",
        evidence=(
            told(seen, "output tokens/s for each that runs", d.each, p.each, "<"),
            told(seen, "mean acceptance length", length),
            told(seen, "spec_accept_ratio", share),
            told(seen, "req_running", d.running),
        ),
        ruled_out=(not_this("overload", f"{d.running:.0f} run in both"),),
        look_next="step time with and without drafts at the usual batch size",
    )


def _step_ms(m: Moment, length: float) -> float:
    return 1000 * length / m.each


def _rejected(seen: Sight) -> Clue | None:
    said = seen.notices.get("spec_decode")
    drafted, taken = seen.growth("spec_draft_tokens_total"), seen.growth("spec_accepted_tokens_total")
    if drafted > 100:
        share, n = taken / drafted, drafted
        first = math.nan
    elif said is not None and "acceptance_ratio" in said.numbers:
        track = said.numbers["acceptance_ratio"]
        share, first, n = track.last, track.first, float(track.count)
    else:
        share, first, n = seen.last("spec_accept_ratio"), math.nan, 1.0
    fell = first >= 0.5 and share < 0.6 * first
    if not (share < POOR or fell):
        return None
    return Clue(
        "spec_decode_regression",
        seen.subject,
        0.55 if fell or n > 1 else 0.5,
        f"{share:.0%} of the drafted tokens are accepted"
        + (f", {first:.0%} before" if fell else "")
        + ": most drafting is thrown away.",
        said.first_at if said is not None else seen.first_at,
        "rejected",
        "ticket",
        "speed",
        evidence=(told(seen, "spec_accept_ratio", share, first if fell else POOR, "was" if fell else "<"),),
        instead=instead(("length_shift", 0.25)),
        look_next="output rate with drafts off, and the mix of requests",
    )
