"""Several ranks or replicas: a shortage of one is no shortage of all.

Where the others have room, the queue of one is a matter of routing, and what that one shows (preemption, a low hit ratio) is
downstream. Where only the full ones are in what was seen, nothing can be said of the others. A replica that does not answer
while the others fill up is lost capacity. Transfers between prefill and decode engines fail on one rank for local reasons,
on many at once for the other side's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import Moment, known, moments
from ..queueing import FULL
from ..sighting import Sighting
from ..track import Sight

SPREAD = 0.4
MANY_FAILED, FAILED_SHARE = 10.0, 0.05


def clues(s: Sighting) -> Iterator[Clue]:
    """The group of all ranks and engines, and transfers of each."""
    group = [(e, looks) for e in s.engines if (looks := moments(e)) and not math.isnan(looks[-1].running)]
    if len(group) >= 2:
        yield from _imbalance(s, group)
        yield from _lost(s, group)
    yield from _transfers(s)


def _imbalance(s: Sighting, group: list[tuple[Sight, list[Moment]]]) -> Iterator[Clue]:
    now = [(e, looks[-1]) for e, looks in group]
    full = [(e, m) for e, m in now if known(m.waiting) >= 2 and known(m.kv) >= FULL]
    queue = sum(known(m.waiting) for _, m in now)
    idle = [(e, m) for e, m in now if known(m.waiting) < 1 and known(m.kv, 1.0) <= FULL - SPREAD]
    if full and idle:
        share = sum(m.waiting for _, m in full) / queue
        worst, level = max(full, key=lambda p: p[1].waiting)
        mean = sum(known(m.kv) for _, m in now) / len(now)
        yield Clue(
            "replica_imbalance",
            worst.subject,
            0.7 if share >= 0.9 else 0.6,
            f"{len(full)} of {len(now)} engines hold {share:.0%} of the queue ({queue:.0f}) at {level.kv:.0%} "
            f"KV while {len(idle)} have room "
            f"(mean {mean:.0%}): work is routed by something other than load.",
            min(e.first_at for e, _ in full),
            "router" if len({e.subject.engine for e, _ in now}) > 1 else "ranks",
            "ticket",
            "fleet",
            evidence=tuple(
                told(e, f"kv_usage_ratio of {e.subject.engine}/{e.subject.rank}", m.kv)
                for e, m in (*full[:4], *idle[:4])
            ),
            ruled_out=(
                not_this("overload", f"mean KV usage of the group is {mean:.0%}"),
                not_this("preemption_storm", "only where the load is piled up"),
            ),
            explains=(
                "overload",
                "long_context_kv_pressure",
                "preemption_storm",
                "head_of_line_blocking",
                "runaway_generation",
                "prefix_cache_collapse",
            ),
            look_next="the router's policy (sessions pinned by hash, or requests counted without their length)",
        )
        return
    queued = [(e, m) for e, m in now if known(m.waiting) >= 2]
    if len(queued) == len(now) and len(full) >= 2 and any(e.subject.rank > 0 for e, _ in now):
        worst, level = max(full, key=lambda p: p[1].waiting)
        each = [m.kv / m.running for _, m in full if m.running >= 1]
        skew = max(each) / min(each) if each else math.nan
        yield Clue(
            "replica_imbalance",
            worst.subject,
            0.4 + (0.05 if skew >= 1.4 else 0.0),
            f"{len(full)} ranks are full ({queue:.0f} wait) and hold unlike requests ({known(skew, 1.0):.1f} × "
            f"the KV of each); whether other ranks "
            "have room is not in what was seen.",
            worst.first_at,
            "ranks",
            "ticket",
            "queue",
            evidence=tuple(told(e, f"req_waiting of rank {e.subject.rank}", m.waiting) for e, m in full[:6]),
            look_next="running, waiting and KV usage of the ranks that are not shown",
        )


def _lost(s: Sighting, group: list[tuple[Sight, list[Moment]]]) -> Iterator[Clue]:
    """One that answered and no longer does, while another has a queue."""
    for seen, looks in group:
        gone = (
            seen.errors
            and not math.isnan(seen.error_at)
            and seen.error_at >= s.last_at - 1
            and seen.error_at > looks[-1].at
        )
        busy = max((known(m[-1].waiting) for e, m in group if e is not seen), default=0.0)
        if gone and busy >= 2:
            yield Clue(
                "capacity_loss",
                seen.subject,
                0.5,
                f"{seen.subject.engine} has not answered for {s.last_at - looks[-1].at:.0f} s, and {busy:.0f} "
                f"requests wait at another engine.",
                looks[-1].at,
                "replica_gone",
                "ticket",
                "fleet",
                evidence=(told(seen, "error", seen.error[:80]), told(seen, "req_waiting elsewhere", busy)),
                explains=("overload", "traffic_surge"),
                look_next="why it went: exit code, kernel log, probe",
            )


def _transfers(s: Sighting) -> Iterator[Clue]:
    failing = [e for e in s.engines if e.said("transfer_timeout", "transfer_failed")]
    if failing:
        n = sum(e.said("transfer_timeout", "transfer_failed") for e in failing)
        ranks = {
            r
            for e in failing
            for k in ("transfer_timeout", "transfer_failed")
            if k in e.notices
            for r in e.notices[k].words.get("rank", {str(e.subject.rank): 1})
        }
        at = min(
            e.notices[k].first_at for e in failing for k in ("transfer_timeout", "transfer_failed") if k in e.notices
        )
        many = len(ranks) > 1
        deferred = max((known(e.last("req_waiting_deferred")) for e in failing), default=0.0)
        yield Clue(
            "pd_transfer_stall",
            failing[0].subject,
            0.75 if n >= 3 or many or deferred >= 3 else 0.6,
            f"KV did not come from the other side in time ({n} messages"
            + (f" on {len(ranks)} ranks at once: look at the other side or the network" if many else "")
            + "). What waits for it keeps its blocks.",
            at,
            "remote_kv",
            "ticket",
            "queue",
            evidence=(
                counted("transfer_timeout, transfer_failed", n),
                told(failing[0], "ranks", float(len(ranks))),
                told(failing[0], "req_waiting_deferred", deferred),
            ),
            ruled_out=(not_this("overload", "these requests wait for a transfer, not for capacity"),),
            explains=("admission_deferred", "engine_hang", "head_of_line_blocking", "overload"),
            named=True,
            look_next="the prefill engines at that time, and blocks held while nothing runs",
        )
    for seen in s.engines:
        yield from _fill_deadlock(seen)
        yield from _back_pressure(seen)
        yield from _failed_transfers(seen)


def _fill_deadlock(seen: Sight) -> Iterator[Clue]:
    said, step = seen.notices.get("dummy_skipped"), seen.notices.get("step")
    if said is None or said.count < 2:
        return
    fetched, fits = said.last("fetch"), said.last("schedulable")
    generated = step.greatest("generation_tokens") if step is not None else math.nan
    if not fetched > fits or generated > 0:
        return
    steady = (
        step is not None
        and "seconds" in step.numbers
        and step.numbers["seconds"].greatest < 1.1 * step.numbers["seconds"].least
    )
    pause = (
        f" Its steps all take {step.last('seconds') * 1000:.0f} ms: a pause in a loop, no work."
        if steady and step is not None
        else ""
    )
    yield Clue(
        "pd_transfer_stall",
        seen.subject,
        0.65 if steady else 0.55,
        f"The decode side has fetched {fetched:.0f} requests and can receive {fits:.0f}; it goes round waiting "
        f"for the rest and none advances.{pause}",
        said.first_at,
        "fill_deadlock",
        "page",
        "queue",
        evidence=(
            told(seen, "requests fetched", fetched, fits, ">"),
            counted("dummy_skipped", said.count),
            told(seen, "step (seconds)", step.last("seconds") if step is not None else math.nan),
        ),
        ruled_out=(not_this("overload", "nothing is computed"),),
        instead=instead(("engine_hang", 0.45)),
        explains=("engine_hang", "overload"),
        look_next="whether the prefill side has finished, and how many transfers the decode side receives at once",
    )


def _failed_transfers(seen: Sight) -> Iterator[Clue]:
    """What the engine counts as failed, and prefills whose decode side does not take part."""
    failed, alone = known(seen.growth("kv_transfer_failed_total")), known(seen.last("req_waiting_bootstrap"))
    early = seen.track("req_waiting_bootstrap")
    grows = early is not None and early.count > 1 and early.last > early.first
    if failed < 3 and alone < 10:
        yield from _failed_ever(seen)
        return
    yield Clue(
        "pd_transfer_stall",
        seen.subject,
        0.6 if failed >= 3 or grows else 0.5,
        (f"{failed:.0f} KV transfers failed, and " if failed > 0 else "")
        + f"{alone:.0f} prefills wait for their decode side"
        + (f", {early.first:.0f} at first." if grows and early is not None else "."),
        seen.first_at,
        "remote_kv",
        "ticket",
        "queue",
        evidence=(told(seen, "kv_transfer_failed_total growth", failed), told(seen, "req_waiting_bootstrap", alone)),
        explains=("admission_deferred", "overload", "head_of_line_blocking"),
        look_next="the decode engines at that time, and the transfer's own log",
    )


def _failed_ever(seen: Sight) -> Iterator[Clue]:
    """One page: failures since the engine started, which may be long ago."""
    track, done = seen.track("kv_transfer_failed_total"), seen.last("req_finished_total")
    if track is None or track.count > 1 or track.last < MANY_FAILED or track.last < FAILED_SHARE * known(done):
        return
    yield Clue(
        "pd_transfer_stall",
        seen.subject,
        0.45,
        f"{track.last:.0f} KV transfers have failed since the engine started"
        + (f", beside {done:.0f} finished requests" if done > 0 else "")
        + "; whether lately, one page does not say.",
        seen.first_at,
        "remote_kv",
        "ticket",
        "queue",
        evidence=(
            told(seen, "kv_transfer_failed_total", track.last, MANY_FAILED, ">="),
            told(seen, "req_finished_total", done),
        ),
        look_next="the same page a minute later, and the transfer's own log",
    )


def _back_pressure(seen: Sight) -> Iterator[Clue]:
    """Queues of the transfer itself: waiting for decode memory, or on their way."""
    alloc, moving = seen.track("req_waiting_prealloc"), seen.track("req_transferring")
    n, way = known(alloc.last) if alloc else 0.0, known(moving.last) if moving else 0.0
    if n < 5 and way < 20:
        return
    kv = known(seen.last("kv_usage_ratio"))
    speed = seen.last("kv_transfer_bytes_per_second")
    memory = n >= way and kv >= FULL
    yield Clue(
        "pd_transfer_stall",
        seen.subject,
        0.55 if memory or way >= 20 else 0.45,
        (
            f"{n:.0f} prefilled requests wait for KV memory on the decode side, which is {kv:.0%} full: "
            f"back-pressure, not bandwidth."
            if memory
            else f"{way:.0f} requests are on their way from prefill to decode and {n:.0f} wait for memory there."
        ),
        seen.first_at,
        "decode_memory" if memory else "transfer",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_waiting_prealloc", n),
            told(seen, "req_transferring", way),
            told(seen, "kv_usage_ratio", kv),
            told(seen, "kv_transfer_bytes_per_second", speed),
        ),
        instead=instead(("long_context_kv_pressure", 0.35 if memory else 0.25)),
        explains=("long_context_kv_pressure", "overload"),
        look_next="transfer speed against the link's, and decode capacity against prefill capacity",
    )
