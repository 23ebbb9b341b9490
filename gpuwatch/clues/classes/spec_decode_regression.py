"""Speculation that does not pay: drafts are rejected, or accepted and still slower than plain decoding.

Acceptance is not the criterion. Steps per second = output rate ÷ mean acceptance length: where the same log or page shows
the service with and without drafts, the rates decide. Without such a comparison high acceptance proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from ..clue import Clue, instead, not_this, told
from ..moments import Moment, moments
from ..sighting import Sighting
from ..track import Sight

SLOWER = 0.77
POOR = 0.2
"""Below a fifth hardly any draft earns the time of its verification, however many tokens it has."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that drafts."""
    for seen in s.engines:
        found = _compared(s, seen) or _rejected(seen)
        if found is not None:
            yield found


def _compared(s: Sighting, seen: Sight) -> Clue | None:
    """A run with drafts against a run without, of this engine or of another in the recording, at the same batch size."""
    said = seen.notices.get("spec_decode")
    if said is None:
        return None
    drafted = [m for run, drafts in _runs(seen) if drafts for m in run]
    others = [e for e in s.engines if e is not seen and "spec_decode" not in e.notices]
    plain = [m for run, drafts in _runs(seen) if not drafts for m in run] + [m for e in others for m in _flowing(e)]
    sizes = {m.running for m in drafted} & {m.running for m in plain}
    if not sizes:
        return None
    size = max(sizes, key=lambda n: sum(m.running == n for m in plain))
    now = median(m.each for m in drafted if m.running == size)
    was = median(m.each for m in plain if m.running == size)
    length, share = said.last("mean_acceptance_length"), said.last("acceptance_ratio")
    if now > SLOWER * was:
        return None
    steps = "" if math.isnan(length) else f" ({1000 * length / now:.1f} ms a step against {1000 / was:.1f} ms)"
    pays = f"; {share:.0%} of the drafts are accepted, so drafting and verifying cost more than they save"
    return Clue(
        "spec_decode_regression",
        seen.subject,
        0.65,
        f"With drafts each of {size:.0f} running requests gets {now:.0f} tokens/s, without {was:.0f}{steps}"
        + (f"{pays}." if share >= 0.5 else "."),
        said.first_at,
        "overhead" if share >= 0.5 else "rejected",
        "ticket",
        "speed",
        evidence=(
            told(seen, "output tokens/s for each that runs", now, was, "<"),
            told(seen, "mean acceptance length", length),
            told(seen, "spec_accept_ratio", share),
            told(seen, "req_running", size),
        ),
        ruled_out=(not_this("overload", f"{size:.0f} run in both"),),
        look_next="step time with and without drafts at the usual batch size",
    )


def _flowing(seen: Sight) -> list[Moment]:
    return [m for m in moments(seen) if m.each > 0]


def _runs(seen: Sight) -> list[tuple[list[Moment], bool]]:
    """The looks of each run of the engine (a restart ends one), and whether it drafted."""
    restarts = [n.times for n in (seen.events.get("restart"), seen.notices.get("restarted")) if n is not None]
    cuts = [-math.inf, *sorted({at for times in restarts for at in times}), math.inf]
    drafts = seen.notices["spec_decode"].times
    looks = _flowing(seen)
    return [
        ([m for m in looks if since <= m.at < until], any(since <= at < until for at in drafts))
        for since, until in pairwise(cuts)
    ]


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
