"""Head-of-line blocking: requests wait, the cache has room, tokens flow, and nobody is let in.

The head needs more than is free, or the batch is at its limit, or something else holds it back: without the head's size
these stay candidates. That the hit ratio falls meanwhile is no sign of anything: a blocked head is looked up in the prefix
cache again at every attempt, and each lookup counts as a miss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import Moment, moments
from ..queueing import FULL, Queue, queue_of
from ..sighting import Sighting
from ..track import Sight

FEW_WAIT = 3.0
STANDS_LOOKS = 3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine with a queue that stands before free room."""
    for seen in s.engines:
        looks = moments(seen)
        q = queue_of(seen, looks)
        if q is None or q.running < 1 or not q.kv < FULL or not q.held_by_capacity:
            continue
        if q.flowing is False or q.admitting or (q.looks < 2 and not _one_line(seen, q)):
            continue
        if q.admitting is None and q.waiting < max(FEW_WAIT, 0.1 * q.running):
            continue  # it need not be the same ones who wait
        yield _clue(seen, q, looks)


def _one_line(seen: Sight, q: Queue) -> bool:
    """A stats line speaks for the seconds before it: tokens came, no prompt was computed, and the batch is at no limit."""
    lines = seen.source("prompt_tokens_per_second") == "log" and seen.engine_kind == "vllm"
    return lines and q.last.prompt == 0 and q.last.generated > 0 and not q.at_limit and q.waiting >= FEW_WAIT


def _clue(seen: Sight, q: Queue, looks: list[Moment]) -> Clue:
    known_limit = not math.isnan(q.limit)
    full_batch = q.at_limit and known_limit
    sure = 0.5 if q.looks >= STANDS_LOOKS else 0.45
    sure = 0.3 if full_batch else sure + 0.1 if known_limit else sure
    sure = 0.4 if q.looks < 2 else sure
    for_s = f" for {q.span_s:.0f} s" if q.looks > 1 else ""
    sure = min(sure, 0.4) if q.waiting > max(20.0, q.running) else sure
    hits = [m.hit for m in looks if not math.isnan(m.hit) and q.first.at <= m.at <= q.last.at]
    moved = len(hits) >= 2 and max(hits) - min(hits) > 0.01
    notes = [not_this("engine_hang", f"tokens flow: {q.last.generated:.3g}/s")] if q.flowing else []
    if moved:
        notes.append(
            not_this(
                "prefix_cache_collapse",
                f"the hit ratio went {hits[0]:.1%} → {hits[-1]:.1%} without any prefill: an artefact of repeated lookups",
            )
        )
    notes.append(not_this("long_context_kv_pressure", f"{1 - q.kv:.0%} of the pool is free"))
    return Clue(
        "head_of_line_blocking",
        seen.subject,
        sure,
        f"{q.waiting:.0f} wait{for_s} while {1 - q.kv:.0%} of the cache is free, {q.running:.0f} "
        f"run and nobody is "
        "let in: the head needs more than is free, or the batch is at its limit.",
        q.first.at,
        "kv_admission",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_waiting", q.waiting, 0.0, ">", q.span_s),
            told(seen, "req_running", q.running),
            told(seen, "kv_usage_ratio", q.kv, FULL, "<"),
            told(seen, "prompt_tokens_per_second", q.last.prompt, 0.0, "="),
            told(seen, "generated_tokens_per_second", q.last.generated),
        ),
        ruled_out=tuple(notes),
        instead=instead(("overload", 0.6 if full_batch else 0.3), ("admission_deferred", 0.25)),
        explains=("prefix_cache_collapse",),
        ended_at=None if q.lasts else q.last.at,
        look_next="prompt length of the head against the free part of the pool, and the batch limit (max_num_seqs)",
    )
