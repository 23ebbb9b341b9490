"""Over-reservation: admission sets aside the output that requests ask for, so a queue stands before an empty cache.

SGLang reserves a share of max_new_tokens, TensorRT-LLM (no-evict) and TGI all of it; vLLM reserves nothing, there the same
picture has other causes. Asked lengths far above answered ones show the waste.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import moments
from ..queueing import FULL, Queue, queue_of
from ..sighting import Sighting
from ..track import Sight

RESERVING = frozenset({"sglang", "trtllm", "trt-llm", "tensorrt-llm", "tgi"})
LOW_KV = 0.6
MANY = 8.0
WASTE = 8.0
LOPSIDED = 4.0
DRAINED = 0.9
SOON_S = 60.0


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that reserves and has a queue before a cache with room."""
    for seen in s.engines:
        q = queue_of(seen, moments(seen))
        if q is None or q.running < 1 or q.waiting < MANY or not q.held_by_capacity:
            continue
        if not q.kv < LOW_KV and not _lopsided(q):
            continue
        if q.flowing is False and q.looks > 1:
            continue
        if _drains(q) or _grows(q):
            continue
        reserves = seen.engine_kind.lower() in RESERVING or seen.fact("output_reserve_ratio") > 0
        waste = _waste(seen)
        if reserves or (waste >= WASTE and q.kv < LOW_KV):
            yield _clue(seen, q, reserves, waste)


def _drains(q: Queue) -> bool:
    """The queue shrinks because requests are let in: a burst on its way, whatever admission sets aside for each."""
    return q.looks > 1 and q.admitting is True and q.waiting <= DRAINED * q.first.waiting


def _grows(q: Queue) -> bool:
    """So many more run each second that all who wait are in within a minute: admission waits for prefill, not for room."""
    if q.looks < 2 or q.admitting is not True or not q.span_s > 0:
        return False
    return (q.running - q.first.running) / q.span_s * SOON_S >= q.waiting


def _lopsided(q: Queue) -> bool:
    """Few run far below the batch's limit, many wait, and blocks are free all the same: they are spoken for."""
    return q.kv < FULL and q.waiting >= LOPSIDED * q.running and q.running < 0.5 * q.limit


def _waste(seen: Sight) -> float:
    asked, n = seen.mean_of("max_tokens_requested")
    got, m = seen.mean_of("output_tokens")
    return asked / got if n > 0 and m > 0 and got > 0 else math.nan


def _clue(seen: Sight, q: Queue, reserves: bool, waste: float) -> Clue:
    limit = q.limit
    full_batch = q.at_limit and not math.isnan(limit)
    taken_back = seen.said("retraction") + (seen.growth("req_preempted_total") > 0)
    sure = (0.55 if reserves else 0.4) + (0.1 if waste >= WASTE else 0.0) + (0.05 if q.looks > 1 else 0.0)
    roomy = q.kv < LOW_KV
    sure = 0.25 if full_batch or taken_back else min(sure, 0.7 if roomy else 0.45)
    ratio = seen.fact("output_reserve_ratio")
    return Clue(
        "max_tokens_over_reservation",
        seen.subject,
        sure,
        f"{q.waiting:.0f} wait while only {q.kv:.0%} of the cache is in use and {q.running:.0f} run: admission is spent on "
        "output that requests ask for and mostly do not use, not on memory.",
        q.first.at,
        "reserved_output",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_waiting", q.waiting, MANY, ">="),
            told(seen, "kv_usage_ratio", q.kv, LOW_KV if roomy else FULL, "<"),
            told(
                seen,
                "req_running",
                q.running,
                limit if not math.isnan(limit) else None,
                "<" if not math.isnan(limit) else "",
            ),
            told(seen, "output_reserve_ratio", ratio),
            told(seen, "max_tokens ÷ output tokens", waste, WASTE, ">="),
        ),
        ruled_out=(
            not_this("long_context_kv_pressure", f"{1 - q.kv:.0%} of the pool is free"),
            *(() if taken_back else (not_this("preemption_storm", "nobody was retracted"),)),
        ),
        instead=instead(
            *(() if roomy else (("long_context_kv_pressure", 0.4),)),
            ("admission_deferred", 0.3),
            ("head_of_line_blocking", 0.25),
            *((("overload", 0.5),) if full_batch else ()),
        ),
        explains=("head_of_line_blocking", "overload"),
        ended_at=None if q.lasts else q.last.at,
        look_next="max_tokens asked for against tokens answered, and the batch limit",
    )
