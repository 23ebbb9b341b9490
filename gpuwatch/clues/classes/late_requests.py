"""Requests that waited, told by spans alone: what the queue and the batch were in hindsight, without a page or a log.

A finished request says when it came, when it was let in and when it ended; together they give back how many waited and ran at
each moment. A batch that stood at its greatest size while requests waited was full; what moved just before says why. Where
the batch was not full, spans do not say what held the others up. Requests that never finished are in no span: an engine
that hangs is not seen here, and the last queue looks shorter than it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model import Evidence, Floats
from ...stats import quantile
from ..clue import Clue, instead, not_this
from ..sighting import Sighting
from ..track import Sight

Some = NDArray[np.bool_]
FEW, SHARE = 8, 0.25
"""So many late requests, and such a share of those that came meanwhile, are worth a word."""
MOSTLY = 0.7
STOOD = 0.75
"""Of the batch's greatest size, over three quarters of the time."""
RISE, LONGER = 1.5, 2.0
BEFORE_S, BEFORE = 15.0, 5
LENGTHS = (("prompts", "prompt_tokens"), ("outputs", "output_tokens"))


class Episode(msgspec.Struct, frozen=True):
    """From the arrival of the first late request until the last one was let in. Rates per second, NaN where not known;
    `lengths`: (what, mean before, mean meanwhile).
    """

    since: float
    until: float
    late: int
    requests: int
    queue_s: float
    queue_share: float
    waiting: float
    running: float
    stood: bool
    rate_before: float
    rate: float
    lengths: tuple[tuple[str, float, float], ...]


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine of which spans tell that requests waited, and nothing else tells of a queue."""
    for seen in s.engines:
        if seen.track("req_waiting") is not None:
            continue
        late_s = s.config.slo_for(seen.facts.get("model", "")).ttft_p95_s
        found = _episode(seen.finished(), late_s)
        if found is not None and found.queue_share >= MOSTLY:
            yield from _full(seen, found, late_s) if found.stood else _held_up(seen, found, late_s)


def _episode(done: dict[str, Floats], late_s: float) -> Episode | None:
    if not done:
        return None
    timed = ~np.isnan(done["queue_s"]) & ~np.isnan(done["ttft_s"])
    done = {name: column[timed] for name, column in done.items()}
    start, queue, end = done["start"], done["queue_s"], done["end"]
    late = queue > late_s
    if int(late.sum()) < FEW:
        return None
    admitted = start + np.nan_to_num(done["front_s"]) + queue
    since, until = float(start[late].min()), float(admitted[late].max())
    came = (start >= since) & (start <= until)
    if late.sum() < SHARE * came.sum():
        return None
    grid = np.linspace(since, until, 200)
    running = _levels(admitted, end, grid)
    before = start < since
    earlier = _levels(admitted, end, np.linspace(float(start.min()), since, 200))
    most = float(max(quantile(running, 0.9), quantile(earlier, 0.9)))
    known_before = before.sum() >= BEFORE and since - float(start.min()) >= BEFORE_S
    last = float(start[came].max())
    return Episode(
        since,
        until,
        int(late.sum()),
        int(came.sum()),
        float(quantile(queue[late], 0.5)),
        float(queue[late].sum() / max(done["ttft_s"][late].sum(), 1e-9)),
        float(_levels(start, admitted, grid).max()),
        float(quantile(running, 0.5)),
        bool(quantile(running, 0.25) >= STOOD * most),
        float(before.sum() / (since - start.min())) if known_before else math.nan,
        float(came.sum() / (last - since)) if last > since else math.nan,
        _lengths(done, before, came) if known_before else (),
    )


def _levels(began: Floats, ended: Floats, at: Floats) -> Floats:
    """How many were between beginning and end at each time."""
    inside = np.searchsorted(np.sort(began), at, "right") - np.searchsorted(np.sort(ended), at, "right")
    return inside.astype(np.float64)


def _lengths(done: dict[str, Floats], before: Some, came: Some) -> tuple[tuple[str, float, float], ...]:
    out = []
    for what, column in LENGTHS:
        old, new = done[column][before], done[column][came]
        old, new = old[~np.isnan(old)], new[~np.isnan(new)]
        if len(old) >= BEFORE and len(new) >= FEW:
            out.append((what, float(old.mean()), float(new.mean())))
    return tuple(out)


def _full(seen: Sight, e: Episode, late_s: float) -> Iterator[Clue]:
    """The batch stood at its greatest size: more came than it could take."""
    longer = max(e.lengths, key=lambda x: x[2] / max(x[1], 1.0), default=None)
    if e.rate >= RISE * e.rate_before:
        rule, sure = "traffic_surge", 0.55
        words = f"Arrivals rose from {e.rate_before:.2g} to {e.rate:.2g}/s, and requests waited: {_words(e)}."
    elif longer is not None and longer[2] >= LONGER * longer[1]:
        rule, sure = "length_shift", 0.5
        what, old, new = longer
        words = f"The mean of {what} went from {old:.0f} to {new:.0f} tokens, and requests waited: {_words(e)}."
    else:
        rule, sure = "overload", 0.5
        words = f"Requests waited at a batch that stood full: {_words(e)}."
    others = (("overload", 0.4),) if rule != "overload" else (("head_of_line_blocking", 0.25),)
    yield _clue(seen, e, late_s, rule, sure, words, "batch_full", others)


def _held_up(seen: Sight, e: Episode, late_s: float) -> Iterator[Clue]:
    """The batch was not full: order of admission, a full cache or a stalled step; no span tells which."""
    words = f"Requests waited although fewer ran than before: {_words(e)}."
    for rule in ("head_of_line_blocking", "long_context_kv_pressure"):
        yield _clue(seen, e, late_s, rule, 0.35, words, "queue_before_room", ())


def _words(e: Episode) -> str:
    return f"up to {e.waiting:.0f} at a time, {e.queue_s:.3g} s at the median of {e.late} late ones, while {e.running:.0f} ran"


def _clue(
    seen: Sight, e: Episode, late_s: float, rule: str, sure: float, words: str, mechanism: str,
    others: tuple[tuple[str, float], ...],
) -> Clue:  # fmt: skip
    rows = [
        Evidence("queue_seconds, median of late requests", e.queue_s, late_s, ">", e.until - e.since, "spans"),
        Evidence(
            "queue ÷ time to first token of late requests", e.queue_share, MOSTLY, ">=", e.until - e.since, "spans"
        ),
        Evidence("late requests ÷ requests", e.late / e.requests, SHARE, ">=", e.until - e.since, "spans"),
        Evidence("waiting at a time, in hindsight", e.waiting, None, "", e.until - e.since, "spans"),
        Evidence("running at a time, in hindsight", e.running, None, "", e.until - e.since, "spans"),
    ]
    if not math.isnan(e.rate):
        was = None if math.isnan(e.rate_before) else e.rate_before
        rows.append(Evidence("arrivals of finished requests (1/s)", e.rate, was, "was" if was else "", 0.0, "spans"))
    rows += [Evidence(f"tokens of {what}, mean", new, old, "was", 0.0, "spans") for what, old, new in e.lengths]
    return Clue(
        rule,
        seen.subject,
        sure,
        words,
        e.since,
        mechanism,
        "ticket",
        "queue",
        evidence=tuple(rows),
        ruled_out=(not_this("engine_hang", f"{e.requests} requests that came meanwhile finished"),),
        instead=instead(*others),
        explains=("overload",) if rule != "overload" else (),
        look_next="the engine's page at the same time: who waits, the batch limit and the KV pool in use",
    )
