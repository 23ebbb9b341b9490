"""Preemption storm: requests are admitted, lose their KV, and are computed again.

Up to about 8 % of requests, once each, is healthy. Beyond: preemptions above completions (a livelock when nothing finishes),
retractions at a full pool with tokens that collapse after them, prompt tokens computed while nobody arrives (recomputation
looks like arrivals), or a full pool at which as many more wait as fewer run, look after look: nobody came and nobody ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from ..clue import Clue, counted, instead, not_this, told
from ..moments import Moment, known, moments
from ..queueing import FULL
from ..sighting import Sighting
from ..track import Sight

PER_FINISHED = 0.5
MANY = 5.0
COLLAPSE = 0.5
ONCE = 0.4
STEPS, HEALTHY = 3, 1 / 12
"""So many times one for one, and more than this share of those who ran: less is healthy."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that takes KV back again and again, or computes again what it had."""
    for seen in s.engines:
        looks = moments(seen)
        counted_clue = _by_counters(seen, looks) or _by_messages(seen, looks)
        if counted_clue is not None:
            yield counted_clue
        elif (found := _recompute(seen, looks) or _one_for_one(seen, looks)) is not None:
            yield found


def _by_counters(seen: Sight, looks: list[Moment]) -> Clue | None:
    lost, done = seen.growth("req_preempted_total"), seen.growth("req_finished_total")
    paused = seen.last("req_paused")
    if paused >= 1 and not lost > 0:
        return _paused(seen, looks, paused)
    if not lost >= MANY or (done > 0 and lost / done < PER_FINISHED):
        return None
    per = lost / done if done > 0 else math.inf
    again = seen.growth("recomputed_tokens_total")
    livelock = not done > 0
    kv = max((m.kv for m in looks if not math.isnan(m.kv)), default=math.nan)
    return Clue(
        "preemption_storm",
        seen.subject,
        0.7 if livelock or per >= 2 else 0.6,
        f"{lost:.0f} preemptions against {known(done):.0f} finished requests in {s_of(seen):.0f} s: work is "
        f"thrown away and done again" + (", and nothing gets through (a livelock)." if livelock else "."),
        seen.first_at,
        "livelock" if livelock else "recompute",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_preempted_total growth", lost, MANY, ">="),
            told(seen, "req_finished_total growth", done),
            told(seen, "kv_usage_ratio, greatest", kv),
            told(seen, "recomputed_tokens_total growth", again),
        ),
        ruled_out=(not_this("overload", "arrivals are not what fills the steps: recomputation is"),),
        instead=instead(("batch_thrashing", 0.35), ("long_context_kv_pressure", 0.3)),
        explains=("long_context_kv_pressure", "overload", "runaway_generation"),
        look_next="whether the running batch drains and refills in a rhythm, and whether prefixes are cached",
    )


def _paused(seen: Sight, looks: list[Moment], paused: float) -> Clue | None:
    if not looks or not known(looks[-1].kv, 1.0) >= FULL:
        return None
    return Clue(
        "preemption_storm",
        seen.subject,
        0.5,
        f"The engine has set {paused:.0f} running requests aside at a full KV pool; their context is computed again later.",
        seen.first_at,
        "paused",
        "ticket",
        "queue",
        evidence=(told(seen, "req_paused", paused, 1.0, ">="), told(seen, "kv_usage_ratio", looks[-1].kv)),
        instead=instead(("long_context_kv_pressure", 0.3)),
        explains=("long_context_kv_pressure", "overload"),
        look_next="the capacity policy (eager admission or no eviction), and output per second under both",
    )


def s_of(seen: Sight) -> float:
    """For how long the subject was seen, seconds."""
    return seen.last_at - seen.first_at


def _by_messages(seen: Sight, looks: list[Moment]) -> Clue | None:
    taken, lost = seen.notices.get("retraction"), seen.notices.get("preemption")
    notice = taken or lost
    if notice is None:
        return None
    total = max(notice.count, known(notice.greatest("total", "retracted")))
    before = [m.generated for m in looks if m.at < notice.first_at and m.generated > 0]
    after = [m.generated for m in looks if m.at > notice.first_at and not math.isnan(m.generated)]
    collapsed = bool(before and after) and max(after[-3:]) < COLLAPSE * max(before)
    kv = max((m.kv for m in looks if not math.isnan(m.kv)), default=math.nan)
    swap = lost is not None and "swap" in {w.lower() for w in lost.words.get("mode", {})}
    many = total >= MANY
    if not (collapsed or many or kv >= FULL):
        return None
    sure = 0.5 + (0.15 if collapsed else 0.0) + (0.1 if many else 0.0) + (0.05 if kv >= FULL else 0.0)
    if not (collapsed or many):
        sure = ONCE  # a pool that is full takes one back: that alone is no storm
    rule = "kv_offload_stall" if swap and collapsed else "preemption_storm"
    fell = f"; tokens went {max(before):.3g} → {max(after[-3:]):.3g}/s after it" if collapsed else ""
    return Clue(
        rule,
        seen.subject,
        min(sure, 0.75),
        f"The KV pool is full and running requests are taken back ({total:.0f} so far){fell}.",
        notice.first_at,
        "swap" if swap else "recompute",
        "ticket",
        "queue",
        evidence=(
            counted("retraction" if taken else "preemption", notice.count),
            told(seen, "kv_usage_ratio, greatest", kv, FULL, ">="),
            told(
                seen,
                "generated_tokens_per_second",
                after[-1] if after else math.nan,
                max(before) if before else None,
                "was",
            ),
        ),
        ruled_out=(not_this("engine_hang", "tokens still flow"),) if after and after[-1] > 0 else (),
        instead=instead(("long_context_kv_pressure", 0.4), ("batch_thrashing", 0.25)),
        explains=("long_context_kv_pressure", "overload", "runaway_generation", "prefill_decode_interference"),
        named=True,
        look_next="retractions per finished request, and prompt tokens computed against arrivals",
    )


def _recompute(seen: Sight, looks: list[Moment]) -> Clue | None:
    """Prompts are computed at a full pool while nobody arrives, and those who ran wait again."""
    for before, now in pairwise(looks):
        if not (before.kv >= FULL and now.prompt > 0):
            continue
        inside = before.inside - now.inside
        back = now.running < before.running and now.waiting > before.waiting and abs(inside) <= known(now.finished) * 60
        if back and not now.arrived > 0 and known(before.prompt) <= 0:
            fell = now.generated < COLLAPSE * before.generated
            return Clue(
                "preemption_storm",
                seen.subject,
                0.55 if fell else 0.45,
                f"Requests went from running back to waiting ({before.running:.0f} → {now.running:.0f}) and "
                f"{now.prompt:.0f} prompt "
                "tokens/s are computed while nobody has arrived: lost context is computed again.",
                now.at,
                "recompute",
                "ticket",
                "queue",
                evidence=(
                    told(seen, "prompt_tokens_per_second", now.prompt, before.prompt, "was"),
                    told(seen, "req_running", now.running, before.running, "was"),
                    told(seen, "requests inside", now.inside, before.inside, "was"),
                    told(seen, "generated_tokens_per_second", now.generated, before.generated, "was"),
                    told(seen, "kv_usage_ratio", before.kv, FULL, ">="),
                ),
                ruled_out=(not_this("traffic_surge", "as many requests are inside as before"),),
                instead=instead(("long_context_kv_pressure", 0.35)),
                explains=("long_context_kv_pressure", "overload", "runaway_generation", "prefill_decode_interference"),
                look_next="the engine's preemption counter against its completions",
            )
    return None


def _one_for_one(seen: Sight, looks: list[Moment]) -> Clue | None:
    """Whoever stops running waits, at a full pool and without a prompt: taken back, as nobody arrives or ends just so often."""
    steps = [(a, b) for a, b in pairwise(looks) if b.running < a.running and b.kv >= FULL and known(b.prompt) <= 0]
    back = [(a, b) for a, b in steps if b.waiting - a.waiting == a.running - b.running]
    lost = sum(a.running - b.running for a, b in back)
    if len(back) < STEPS or 2 * len(back) <= len(steps) or lost < max(MANY, HEALTHY * back[0][0].running):
        return None
    first, last = back[0][0], back[-1][1]
    return Clue(
        "preemption_storm",
        seen.subject,
        0.6,
        f"{lost:.0f} of {first.running:.0f} running requests went back to waiting within {last.at - first.at:.0f} s at a full "
        f"pool ({first.waiting:.0f} → {last.waiting:.0f} wait, one for one): those who stay grow into their memory, and what "
        "they had computed is thrown away.",
        first.at,
        "recompute",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_running", last.running, first.running, "was"),
            told(seen, "req_waiting", last.waiting, first.waiting, "was"),
            told(seen, "kv_usage_ratio", last.kv, FULL, ">="),
            told(seen, "prompt_tokens_per_second", last.prompt),
        ),
        ruled_out=(not_this("traffic_surge", "as many requests are inside as before"),),
        instead=instead(("long_context_kv_pressure", 0.45), ("overload", 0.35)),
        explains=("long_context_kv_pressure", "overload", "runaway_generation"),
        ended_at=None if last is looks[-1] else last.at,
        look_next="the engine's preemption counter, and how many may run at once (max_num_seqs) against the pool",
    )
