"""Demand: refusals, surges, and a shift of lengths, as far as short evidence shows them.

A full queue that refuses is overload whatever the reason; a health check that fails with it is not a crash, and a probe
that restarts such an engine makes it worse. Two pages suffice for a mean against the mean since the start, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import known, moments
from ..queueing import queue_of
from ..sighting import Sighting
from ..track import Sight

REFUSALS = 3.0
RISE = 2.0
LOOKS = 6
LONGER = 2.0
ENOUGH = 20.0
LINES = 3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that refuses, and every queue that began with a rise or a shift."""
    for seen in s.engines:
        yield from _refuses(seen)
        yield from _late_by_queue(s, seen)
        yield from _surge(seen)
        yield from _shift(seen)


def _refuses(seen: Sight) -> Iterator[Clue]:
    said = float(seen.said("queue_full", "queue_timeout", "slot_unavailable"))
    refused = max(said, known(seen.growth("req_rejected_total")))
    sick = seen.said("health_failed")
    again = seen.events["restart"].count if "restart" in seen.events else 0
    again += seen.said("restarted")
    waiting = seen.track("req_waiting")
    queue = waiting.greatest if waiting is not None else math.nan
    if refused < REFUSALS and not (sick and (refused >= 1 or known(queue) >= 8)):
        return
    at = min(
        (
            n.first_at
            for k in ("queue_full", "queue_timeout", "health_failed")
            if (n := seen.notices.get(k)) is not None
        ),
        default=seen.first_at,
    )
    probes = bool(sick) or (again >= 1 and refused >= REFUSALS)
    yield Clue(
        "overload",
        seen.subject,
        0.65 if said >= REFUSALS or refused >= 10 else 0.55,
        f"The engine refuses work: its queue is full ({refused:.0f} refusals"
        + (f", {sick} failed health checks" if sick else "")
        + (f", {again} restarts" if again else "")
        + ")."
        + (
            " A health check that fails for a full queue is no crash; a liveness probe on it restarts what only needs time."
            if probes
            else ""
        ),
        at,
        "probe_restarts" if probes else "queue_full",
        "ticket",
        "queue",
        evidence=(
            told(seen, "refusals", refused, REFUSALS, ">="),
            counted("health_failed", sick),
            told(seen, "restarts", float(again)),
            told(seen, "req_waiting, greatest", queue),
        ),
        ruled_out=(not_this("engine_crash", "nothing names an error of the engine"),)
        if probes and not seen.said("engine_dead", "out_of_memory")
        else (),
        instead=instead(("traffic_surge", 0.3)),
        explains=("engine_crash",) if probes and not seen.said("engine_dead", "out_of_memory") else (),
        named=said >= 1,
        look_next="arrivals against completions, and which probe looks at the health check",
    )


def _late_by_queue(s: Sighting, seen: Sight) -> Iterator[Clue]:
    """Lines of finished requests: nearly all of their time was queue, whatever they asked for."""
    said = seen.notices.get("request")
    if said is None or said.count < LINES or "queue_seconds" not in said.numbers or seen.said("grammar"):
        return
    queue, work = said.numbers["queue_seconds"], said.numbers.get("inference_seconds")
    if queue.least < s.config.slo.ttft_p95_s or (work is not None and queue.mean < 2 * work.mean):
        return
    each = f" and computed for {work.mean:.2g} s" if work is not None else ""
    yield Clue(
        "overload",
        seen.subject,
        0.5,
        f"{said.count} requests waited {queue.least:.3g} to {queue.greatest:.3g} s in the queue{each}: all "
        f"alike, so the queue is long.",
        said.first_at,
        "queue_time",
        "ticket",
        "queue",
        evidence=(
            told(seen, "queue_seconds, least", queue.least, s.config.slo.ttft_p95_s, ">="),
            told(seen, "inference_seconds, mean", work.mean if work is not None else math.nan),
        ),
        ruled_out=(not_this("engine_hang", f"{said.count} requests finished"),),
        instead=instead(("max_tokens_over_reservation", 0.3), ("admission_deferred", 0.25)),
        look_next="size of the batch meanwhile, and arrivals against completions",
    )


def _surge(seen: Sight) -> Iterator[Clue]:
    looks = [m for m in moments(seen) if not math.isnan(m.arrived)]
    q = queue_of(seen, moments(seen))
    if q is None or len(looks) < LOOKS or not q.grows > 0:
        return
    third = len(looks) // 3
    before = sum(m.arrived for m in looks[:third]) / third
    after = sum(m.arrived for m in looks[-third:]) / third
    if not after >= RISE * before > 0 or known(looks[0].waiting) >= 1:
        return
    yield Clue(
        "traffic_surge",
        seen.subject,
        0.55,
        f"Arrivals rose from {before:.2g} to {after:.2g}/s and the queue with them, to {q.waiting:.0f}.",
        q.first.at,
        "arrivals_rose",
        "ticket",
        "queue",
        evidence=(told(seen, "arrival_rate_per_second", after, before, "was"), told(seen, "req_waiting", q.waiting)),
        instead=instead(("overload", 0.45)),
        explains=("overload", "long_context_kv_pressure"),
        look_next="whether the rate returns, and whether completions keep their cost",
    )


def _shift(seen: Sight) -> Iterator[Clue]:
    q = queue_of(seen, moments(seen))
    if q is None:
        return
    for name, words in (("prompt_tokens", "prompts"), ("output_tokens", "outputs")):
        first, last = seen.histograms.get(name, (None, None))
        if first is None or last is None or first.count < ENOUGH or last.count - first.count < ENOUGH:
            continue
        before, after = first.sum / first.count, (last.sum - first.sum) / (last.count - first.count)
        if after >= LONGER * before:
            yield Clue(
                "length_shift",
                seen.subject,
                0.4 if q.swings else 0.5,  # of a batch that drains and refills it is what set that off
                f"The mean of {words} went from {before:.0f} to {after:.0f} tokens "
                f"({last.count - first.count:.0f} requests), and {q.waiting:.0f} wait.",
                first.at,
                words,
                "ticket",
                "queue",
                evidence=(told(seen, name, after, before, "was"), told(seen, "req_waiting", q.waiting)),
                ruled_out=(not_this("traffic_surge", "lengths moved"),),
                instead=instead(("overload", 0.4)),
                explains=("overload",),
                look_next="which client sends them, and since when",
            )
            return
