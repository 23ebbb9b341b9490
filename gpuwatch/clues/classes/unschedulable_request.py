"""Unschedulable request: the head of the queue can never run, because it needs more than the whole KV pool.

Nothing runs, requests wait, the cache is empty. Where the engine says the size of its pool and its longest allowed request,
the second being the larger decides; a message that names need and pool proves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import moments
from ..queueing import Queue, queue_of
from ..sighting import Sighting
from ..track import Sight

EMPTY_KV = 0.1


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine whose head cannot fit."""
    for seen in s.engines:
        said = seen.notices.get("unschedulable")
        q = queue_of(seen, moments(seen))
        pool, longest = seen.fact("kv_capacity_tokens"), seen.fact("max_model_len", "context_len")
        if said is not None:
            need, have = said.last("need_tokens", "need"), said.last("have_tokens", "have")
            yield Clue(
                "unschedulable_request",
                seen.subject,
                0.8,
                "A request needs more KV than the engine can ever give"
                + (f": {need:.0f} tokens, {have:.0f} at hand." if not math.isnan(need + have) else "."),
                said.first_at,
                "larger_than_the_pool",
                "page" if q is not None and q.running < 1 else "ticket",
                "queue",
                evidence=(counted("unschedulable", said.count), told(seen, "tokens needed", need, have, ">")),
                explains=("head_of_line_blocking", "engine_hang", "overload"),
                named=True,
                look_next="which client sends prompts of this length",
            )
        elif q is not None and q.running < 1 and q.kv <= EMPTY_KV and pool < longest and q.held_by_capacity:
            yield _by_size(seen, q, pool, longest)


def _by_size(seen: Sight, q: Queue, pool: float, longest: float) -> Clue:
    return Clue(
        "unschedulable_request",
        seen.subject,
        0.7 if q.looks > 1 else 0.6,
        f"Nothing runs and {q.waiting:.0f} wait at an empty cache: the pool holds {pool:.0f} tokens, requests up to "
        f"{longest:.0f} are let in, and the head of the queue is likely one that can never fit. It blocks all behind it.",
        q.first.at,
        "larger_than_the_pool",
        "page" if q.looks > 1 else "ticket",
        "queue",
        evidence=(
            told(seen, "req_running", 0.0),
            told(seen, "req_waiting", q.waiting, 0.0, ">", q.span_s),
            told(seen, "kv_usage_ratio", q.kv, EMPTY_KV, "<="),
            told(seen, "kv_capacity_tokens", pool, longest, "<"),
        ),
        ruled_out=(
            not_this("long_context_kv_pressure", f"{1 - q.kv:.0%} of the pool is free"),
            not_this("overload", "nothing runs, so nothing is used up"),
        ),
        instead=instead(("engine_hang", 0.35)),
        explains=("head_of_line_blocking", "engine_hang", "overload"),
        ended_at=None if q.lasts else q.last.at,
        look_next="the prompt lengths of what waits; the queue moves as soon as that request is aborted",
    )
