"""The KV pool is full and requests wait while tokens flow: who holds it?

Three classes share the picture. Requests come and go and more arrive than leave: overload. Nobody is let in, because those
who run keep generating: long_context_kv_pressure, or runaway_generation where outputs have no end. What is admitted and
finished meanwhile separates them; a single look shows neither, and then it is undecided. A full pool without a queue is no
pressure: some engines count reusable prefixes as used. A pool that fills steadily with no arrivals is a forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..clue import LEAST, Clue, counted, instead, not_this, told
from ..moments import Moment, known, moments
from ..queueing import FULL, Queue, queue_of
from ..sighting import Sighting
from ..track import Sight

LONG_TOKENS = 8192.0
LONG_SHARE, HUGE_SHARE = 0.04, 0.1
"""A request that holds a twenty-fifth of the pool is long for it: a batch of 25 fills it. From a tenth on, few hold it all."""
HOURS_S = 1800.0
LARGE = 64.0
"""A batch of exactly 64, 128 or 256 is a limit, not a coincidence; one of 8 may be either."""
CROWD, CROWDED, HALF_EMPTY = 16.0, 4.0, 0.5
"""So many waiting, and so many times the batch, before a cache that is half empty: a small batch is at its limit, too."""
NOT_RESERVING = frozenset({"vllm", "llamacpp", "ollama"})
"""Engines whose admission sets nothing aside for output that is not there yet."""
SLOTS = frozenset({"llamacpp", "ollama"})
"""Engines that show no pool: who waits has no slot."""
SOON_S = 600.0
RAMP_LOOKS = 4
RETRIES = 3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine whose pool or batch is full while requests wait, and every pool that is about to fill."""
    for seen in s.engines:
        looks = moments(seen)
        q = queue_of(seen, looks)
        yield from _no_free_space(seen)
        if q is None:
            yield from _fills(seen, looks)
        elif q.running >= 1 and q.flowing is not False and q.held_by_capacity:
            if q.full:
                yield from _full(seen, q)
            elif q.at_limit and (q.waiting >= 2 or not math.isnan(q.limit)):
                yield _batch_full(seen, q)


def _no_free_space(seen: Sight) -> Iterator[Clue]:
    """The engine says that a batch found no room in the cache and was cut."""
    said = seen.notices.get("kv_retry")
    if said is None or said.count < RETRIES:
        return
    yield Clue(
        "long_context_kv_pressure",
        seen.subject,
        0.55,
        f"{said.count} batches found no free space in the cache and were tried again smaller: what runs fills it.",
        said.first_at,
        "no_free_space",
        "ticket",
        "queue",
        named=True,
        evidence=(counted("kv_retry", said.count),),
        instead=instead(("memory_fragmentation", 0.25), ("overload", 0.25)),
        look_next="context size for each slot against the cache, and the number of slots",
    )


def _full(seen: Sight, q: Queue) -> Iterator[Clue]:
    lengths = _length(seen, q)
    stuck = q.admitting is False
    churns = q.admitting is True
    stays_s = q.span_s if q.kv_least >= FULL else 0.0
    cut = _cut_by_length(seen)
    held = (
        0.3
        + (0.2 if stuck else -0.05 if churns else 0.0)
        + (0.1 if lengths > LONG_SHARE else 0.0)
        + (0.05 if q.grows > 0 else 0.0)
    )
    endless = 0.3 + (0.05 if stuck else -0.1) + (0.15 if stays_s >= HOURS_S else 0.0) + (0.15 if cut else 0.0)
    more = (
        0.35
        + (0.2 if churns else -0.05 if stuck else 0.0)
        + (0.05 if q.grows > 0 else 0.0)
        - (0.15 if lengths > LONG_SHARE else 0.0)
    )
    if q.looks < 2:
        held, endless, more = min(held, 0.4), min(endless, 0.35), min(more, 0.4)
    if lengths >= HUGE_SHARE:  # by the numbers few hold it, whatever comes and goes
        held, more = max(held + 0.1, 0.5), more - 0.1
    if q.swings:  # it drains and refills: the order of admission may be what is wrong, and three looks are no proof
        held, endless, more = min(held, 0.4), min(endless, 0.3), min(more, 0.4)
    more = max(more, LEAST)  # at one look or ten: nobody can rule it out without seeing who comes and goes
    who = {
        "long_context_kv_pressure": (
            held,
            "long_generations",
            f"{q.running:.0f} requests hold {q.kv:.0%} of the KV pool and decode on; nobody is let in",
        ),
        "runaway_generation": (
            endless,
            "no_stop",
            f"{q.running:.0f} requests hold {q.kv:.0%} of the KV pool and do not end",
        ),
        "overload": (more, "KV pool_full", f"Requests come and go at a full KV pool ({q.kv:.0%}), more come than go"),
    }
    for rule, (sure, mechanism, words) in who.items():
        yield Clue(
            rule,
            seen.subject,
            round(sure, 2),
            f"{words}, {_queue_words(q)}.",
            q.first.at,
            mechanism,
            "ticket",
            "queue",
            evidence=_numbers(seen, q, lengths),
            ruled_out=_flows(q),
            ended_at=None if q.lasts else q.last.at,
            look_next="completions by reason (length, stop, abort), max_tokens asked for, and KV usage after a drain",
        )


def _batch_full(seen: Sight, q: Queue) -> Clue:
    told_so = not math.isnan(q.limit)
    crowd = q.waiting >= max(CROWD, CROWDED * q.running) and (q.kv < HALF_EMPTY or seen.engine_kind in SLOTS)
    likely = q.waiting >= 8 and (q.looks > 1 or q.running >= LARGE or crowd)
    sure = 0.6 if told_so and q.looks > 1 else 0.5 if told_so or (likely and q.looks > 1) else 0.45 if likely else 0.35
    at = f"its limit of {q.limit:.0f}" if told_so else f"{q.running:.0f}, which looks like its limit"
    return Clue(
        "overload",
        seen.subject,
        sure,
        f"The batch stands at {at} and {_queue_words(q)}"
        + ("." if math.isnan(q.kv) else f"; {q.kv:.0%} of the cache is used."),
        q.first.at,
        "batch_full",
        "ticket",
        "queue",
        evidence=_numbers(seen, q, math.nan),
        ruled_out=_flows(q),
        instead=instead(
            ("head_of_line_blocking" if seen.engine_kind in NOT_RESERVING else "max_tokens_over_reservation", 0.25)
        ),
        ended_at=None if q.lasts else q.last.at,
        look_next="the batch limit (max_num_seqs), and whether completions rise with it",
    )


def _fills(seen: Sight, looks: Sequence[Moment]) -> Iterator[Clue]:
    """No queue yet; a few requests grow into what is left of the pool, and nobody arrives."""
    tail = [m for m in looks[-12:] if not math.isnan(m.kv)]
    if len(tail) < RAMP_LOOKS or tail[-1].kv < 0.8 or tail[-1].running < 1:
        return
    rises = all(b.kv >= a.kv for a, b in pairwise(tail)) and tail[-1].kv > tail[0].kv
    constant = all(m.running == tail[0].running for m in tail)
    quiet = all(known(m.prompt) <= 0 and known(m.waiting) < 1 for m in tail)
    span_s = tail[-1].at - tail[0].at
    if not (rises and constant and quiet) or span_s <= 0:
        return
    slope = (tail[-1].kv - tail[0].kv) / span_s
    left_s = (1 - tail[-1].kv) / slope
    if left_s > SOON_S or tail[-1].kv / tail[-1].running < LONG_SHARE:
        return
    yield Clue(
        "long_context_kv_pressure",
        seen.subject,
        0.5,
        f"{tail[-1].running:.0f} long requests hold {tail[-1].kv:.1%} of the KV pool and grow: it is full in "
        f"about {left_s:.0f} s. "
        "Then requests are preempted, and without a prefix cache what they lose is computed again.",
        tail[0].at,
        "pool_fills",
        "info",
        "queue",
        evidence=(
            told(seen, "kv_usage_ratio", tail[-1].kv, tail[0].kv, "was", span_s),
            told(seen, "seconds until full", left_s, SOON_S, "<"),
            told(seen, "req_running", tail[-1].running),
            told(seen, "req_waiting", tail[-1].waiting, 0.0, "="),
        ),
        ruled_out=(
            not_this("overload", "nobody waits and nobody arrives"),
            not_this("engine_hang", f"tokens flow: {known(tail[-1].generated):.3g}/s"),
        ),
        instead=instead(("preemption_storm", 0.4)),
        look_next="preemptions per finished request once it is full, and prompt tokens computed while nobody arrives",
    )


def _length(seen: Sight, q: Queue) -> float:
    """Share of the pool that one running request holds; at least LONG_SHARE × 1.01 where its tokens say that it is long."""
    share = q.kv / q.running
    pool = seen.fact("kv_capacity_tokens")
    if share * pool >= LONG_TOKENS:
        return max(share, 1.01 * LONG_SHARE)
    return share


def _cut_by_length(seen: Sight) -> bool:
    asked, n = seen.mean_of("max_tokens_requested")
    got, m = seen.mean_of("output_tokens")
    return n > 0 and m > 0 and got >= 0.8 * asked


def _queue_words(q: Queue) -> str:
    if q.looks < 2:
        return f"{q.waiting:.0f} wait"
    return f"the queue went {q.first.waiting:.0f} → {q.waiting:.0f} in {q.span_s:.0f} s"


def _numbers(seen: Sight, q: Queue, lengths: float) -> tuple:  # type: ignore[type-arg]
    rows = [
        told(seen, "kv_usage_ratio", q.kv, FULL, ">=" if q.full else "<", q.span_s),
        told(seen, "req_waiting", q.waiting, *((q.first.waiting, "was", q.span_s) if q.looks > 1 else ())),
        told(seen, "req_running", q.running, q.limit if not math.isnan(q.limit) else None, ""),
        told(seen, "generated_tokens_per_second", q.last.generated),
        told(seen, "prompt_tokens_per_second", q.last.prompt),
    ]
    if not math.isnan(lengths):
        rows.append(told(seen, "share of the pool that one running request holds", lengths))
    return tuple(rows)


def _flows(q: Queue) -> tuple:  # type: ignore[type-arg]
    if not q.flowing or not q.last.generated > 0:
        return ()
    each = q.last.generated / q.running if q.running else math.nan
    return (not_this("engine_hang", f"tokens flow: {known(q.last.generated):.3g}/s, {each:.3g}/s for each that runs"),)
