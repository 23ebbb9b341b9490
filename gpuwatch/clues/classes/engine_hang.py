"""Engine hang: requests are inside and nothing moves, or the scheduler lets nobody in though everything is free.

Only what must move tells: tokens, steps, batches. A full cache, a long queue and a green health check merely coincide. A
hung collective shows on the devices: its ranks spin at 100 %, the one that never came is at 0 %. Under a long prefill a
single look may show no tokens either; requests in decode would have got theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...model import RuledOut, Severity
from ..clue import Clue, counted, instead, not_this, told
from ..moments import Moment, Progress, known, moments, progress
from ..queueing import FULL, queue_of
from ..sighting import Sighting
from ..track import Notice, Sight

EMPTY_KV = 0.1
SPINNING, IDLE = 0.9, 0.05
WORKING = 0.05
LONG_S = 60.0
AT_FINISH_S = 180.0
"""Where token counters move when a request ends, they may stand still for as long as a request takes."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that stands still, every scheduler that admits nobody, every group of devices that waits for one."""
    for seen in s.engines:
        looks = moments(seen)
        yield from _messages(seen, looks)
        moving = progress(seen, looks, s.last_at)
        yield from _admits_nobody(seen, looks)
        yield from _stands_still(s, seen, looks, moving)
    yield from _lopsided(s)


def _messages(seen: Sight, looks: list[Moment]) -> Iterator[Clue]:
    timeout, dog = seen.notices.get("collective_timeout"), seen.notices.get("watchdog_timeout")
    if timeout is not None:
        ranks = sorted(timeout.words.get("rank", {}))
        yield Clue(
            "engine_hang",
            seen.subject,
            0.75,
            f"A collective timed out ({timeout.count} messages, rank {', '.join(ranks[:8]) or 'unknown'}): its ranks waited "
            "for one that never came. The rank that complains is a victim, not necessarily the culprit.",
            timeout.first_at,
            "collective",
            "page",
            evidence=(counted("collective_timeout", timeout.count),),
            named=True,
            instead=instead(("gpu_hardware_fault", 0.3)),
            explains=("engine_crash", "overload", "straggler_gpu"),
            look_next="the rank that did not complain: its log, its stack, and XIDs of its device",
        )
    elif dog is not None:
        yield Clue(
            "engine_hang",
            seen.subject,
            0.7,
            f"The engine's own watchdog saw its scheduler make no step in time ({dog.count} messages).",
            dog.first_at,
            "watchdog",
            "page",
            evidence=(counted("watchdog_timeout", dog.count),),
            named=True,
            explains=("engine_crash", "overload"),
            look_next="the stacks that it prints before it ends the process",
        )
    sick = seen.notices.get("health_failed")
    if (
        sick is not None
        and not seen.said("queue_full", "queue_timeout", "restarted")
        and timeout is None
        and dog is None
    ):
        yield Clue(
            "engine_hang",
            seen.subject,
            0.5,
            f"The engine failed its own health check ({sick.count} messages): a part of it gave no answer in time.",
            sick.first_at,
            "no_answer",
            evidence=(counted("health_failed", sick.count),),
            named=True,
            instead=instead(("overload", 0.4)),
            look_next="whether tokens flow, and the process that did not answer",
        )
    blocked = seen.notices.get("broadcast_block_wait")
    if blocked is not None and timeout is None and dog is None and not _went_on(looks, blocked):
        waited_s = blocked.count * known(blocked.greatest("seconds"), 60.0)
        served = any(known(m.generated) > 0 for m in looks if m.at < blocked.first_at)
        compiling = seen.said("compiled", "weights_loaded", "graphs_captured") > 0 and not served
        yield Clue(
            "engine_hang",
            seen.subject,
            min(0.65, (0.55 if served else 0.3 if compiling else 0.4) + 0.05 * (blocked.count - 1)),
            f"A worker has not taken its work for {waited_s:.0f} s"
            + (", after it had served: it hangs." if served else ": it hangs, or it compiles."),
            blocked.first_at,
            "worker_waits",
            "page" if served else "ticket",
            named=served,
            evidence=(counted("broadcast_block_wait", blocked.count),),
            instead=() if served else instead(("cold_start", 0.5 if compiling else 0.35)),
            look_next="whether tokens flow, and the worker's stack",
        )


def _went_on(looks: list[Moment], said: Notice) -> bool:
    """Whether tokens flowed after the last such message: then it was a pause, such as a compilation."""
    return any(m.at > said.last_at and m.generated > 0 for m in looks)


def _admits_nobody(seen: Sight, looks: list[Moment]) -> Iterator[Clue]:
    """Nothing runs and requests wait: with a free cache that is never load."""
    q = queue_of(seen, looks)
    if q is None or q.running >= 1 or math.isnan(q.running) or math.isnan(q.kv):
        return
    if not q.held_by_capacity:
        return  # they wait for something that is told: admission_deferred
    if known(seen.last("engine_asleep")) >= 1:
        return  # put to sleep by its operator
    evidence = (
        told(seen, "req_running", 0.0),
        told(seen, "req_waiting", q.waiting, 0.0, ">", q.span_s),
        told(seen, "kv_usage_ratio", q.kv, EMPTY_KV if q.kv <= EMPTY_KV else FULL, "<=" if q.kv <= EMPTY_KV else ">="),
    )
    severity: Severity = "page" if q.looks > 1 else "ticket"  # a single look may be the moment between two batches
    seen_for = f" for {q.span_s:.0f} s" if q.span_s else ""
    if q.kv <= EMPTY_KV:
        pool, longest = seen.fact("kv_capacity_tokens"), seen.fact("max_model_len", "context_len")
        fits = pool >= longest
        yield Clue(
            "engine_hang",
            seen.subject,
            (0.65 if q.looks > 1 else 0.55) + (0.05 if fits else 0.0),
            f"Nothing runs, {q.waiting:.0f} wait{seen_for} and the cache is empty: the scheduler admits nobody. That is a "
            "defect or a head that can never fit, never load.",
            q.first.at,
            "admits_nobody",
            severity,
            "queue",
            evidence,
            (
                not_this("overload", "nothing runs, so nothing is used up"),
                not_this("long_context_kv_pressure", f"KV usage {q.kv:.0%}"),
                *(
                    (
                        not_this(
                            "unschedulable_request",
                            f"the pool holds {pool:.0f} tokens, the longest request {longest:.0f}",
                        ),
                    )
                    if fits
                    else ()
                ),
            ),
            () if fits else instead(("unschedulable_request", 0.4), ("admission_deferred", 0.25)),
            explains=("overload",),
            ended_at=None if q.lasts else q.last.at,
            look_next="size of the head's prompt against the pool, requests deferred for a grammar or remote KV, and the "
            "scheduler's stack",
        )
    else:
        yield Clue(
            "engine_hang",
            seen.subject,
            0.5,
            f"Nothing runs, {q.waiting:.0f} wait{seen_for} and yet {q.kv:.0%} of the cache is held: by requests that are "
            "parked (a transfer, an offload) or lost.",
            q.first.at,
            "parked_requests_hold_kv",
            severity,
            "queue",
            evidence,
            (not_this("overload", "nothing runs"),),
            instead(("admission_deferred", 0.4), ("pd_transfer_stall", 0.3), ("kv_offload_stall", 0.25)),
            explains=("overload",),
            ended_at=None if q.lasts else q.last.at,
            look_next="whether a KV connector is in use and how many requests are deferred for remote KV",
        )


def _stands_still(s: Sighting, seen: Sight, looks: list[Moment], moving: Progress) -> Iterator[Clue]:
    inside = [m for m in looks if m.running >= 1 or m.waiting >= 1]
    if moving.says != "still" or not inside or inside[-1].at < looks[-1].at:
        return
    now = looks[-1]
    if now.running < 1 and not math.isnan(now.kv):
        return  # that is admits_nobody
    enough_s = LONG_S if moving.trusted else AT_FINISH_S
    device, why = _device(s, seen)
    if (device == "works" or (not moving.trusted and device == "unknown")) and moving.still_s < enough_s:
        return  # a long prefill keeps the device busy, and so does a request that is not counted before its end
    certain = moving.still_s >= enough_s or device == "spins"
    sure = 0.75 if certain else 0.55 if moving.looks > 1 and moving.trusted else 0.45 if moving.trusted else 0.35
    sure += 0.1 if device in ("idle", "spins") else 0.0
    grows = now.waiting - inside[0].waiting if not math.isnan(now.waiting) else math.nan
    after = " after tokens had flowed" if moving.moved_before else ""
    yield Clue(
        "engine_hang",
        seen.subject,
        min(sure, 0.9),
        f"No token, step or completion for {moving.still_s:.0f} s{after} while {now.inside:.0f} requests are inside"
        + (f"; {why}" if why else "")
        + ". The queue will not drain by itself.",
        now.at - moving.still_s,
        "no_progress",
        "page" if certain else "ticket",
        evidence=(
            told(seen, "seconds without a token or a step", moving.still_s, 0.0, ">", moving.still_s),
            told(seen, "looks in a row", float(moving.looks)),
            told(seen, "req_running", now.running),
            told(seen, "req_waiting", now.waiting),
            told(seen, "req_waiting growth", grows),
            told(seen, "kv_usage_ratio", now.kv),
        ),
        ruled_out=_not_load(now, moving),
        instead=instead(
            *(() if certain else (("prefill_decode_interference", 0.3),)),
            *(() if device == "spins" else (("stale_telemetry", 0.25),)),
        ),
        explains=(
            "overload",
            "long_context_kv_pressure",
            "head_of_line_blocking",
            "runaway_generation",
            "traffic_surge",
            "max_tokens_over_reservation",
            "preemption_storm",
        ),
        look_next="the devices (idle, or 100 % without memory traffic), and the workers' stacks",
    )


def _not_load(now: Moment, moving: Progress) -> tuple[RuledOut, ...]:
    out = [not_this("overload", "an overloaded engine makes tokens: there were none")]
    if now.running >= 2 and moving.looks > 1:
        out.append(
            not_this("prefill_decode_interference", f"{now.running:.0f} run: those in decode get a token a step")
        )
    return tuple(out)


def _device(s: Sighting, seen: Sight) -> tuple[str, str]:
    """works, idle, spins or unknown, and the number."""
    gpus = s.gpus_of(seen)
    dram = [t.last for g in gpus if (t := g.track("gpu_dram_active_ratio")) is not None]
    util = [t.last for g in gpus if (t := g.track("gpu_util_ratio")) is not None]
    if dram and max(dram) >= WORKING:
        return "works", f"the device moves data ({max(dram):.0%})"
    if util and max(util) <= IDLE:
        return "idle", f"the device is idle ({max(util):.0%})"
    if dram and util and min(util) >= SPINNING:
        return "spins", f"the device spins ({max(util):.0%} busy, {max(dram):.0%} memory traffic)"
    return "unknown", ""


def _lopsided(s: Sighting) -> Iterator[Clue]:
    """Devices of one node at 100 % and one at 0 %: the mean would look healthy."""
    nodes: dict[str, list[Sight]] = {}
    for gpu in s.gpus:
        if "/" not in gpu.subject.gpu and gpu.track("gpu_util_ratio") is not None:
            nodes.setdefault(gpu.facts.get("node", ""), []).append(gpu)
    engines = [(e, progress(e, moments(e), s.last_at)) for e in s.engines]
    if any(p.says == "moves" for _, p in engines):
        return  # a group that makes tokens has all its ranks: the idle device is not one of them
    for group in nodes.values():
        busy = [g for g in group if g.last("gpu_util_ratio") >= SPINNING]
        idle = [g for g in group if (t := g.track("gpu_util_ratio")) is not None and t.greatest <= IDLE]
        if len(busy) < 2 or not idle or len(idle) > len(busy) / 2 or _empty(idle, busy):
            continue
        yield _spinning_group(s, engines, busy, idle)


def _spinning_group(s: Sighting, engines: list[tuple[Sight, Progress]], busy: list[Sight], idle: list[Sight]) -> Clue:
    still = next((e for e, p in engines if p.says == "still"), None)
    names = ", ".join(g.facts.get("index", g.subject.gpu) for g in idle)
    subject = still.subject if still is not None else engines[0][0].subject if len(engines) == 1 else idle[0].subject
    return Clue(
        "engine_hang",
        subject,
        0.75 if still is not None else 0.5,
        f"{len(busy)} devices are at {min(g.last('gpu_util_ratio') for g in busy):.0%} and device {names} at 0 %: in a "
        "tensor-parallel group that is a collective which one rank never joined; the others spin. Not overload.",
        idle[0].first_at,
        "collective",
        "page" if still is not None else "ticket",
        evidence=tuple(
            told(g, f"gpu_util_ratio of {g.facts.get('index', g.subject.gpu)}", g.last("gpu_util_ratio"))
            for g in (*busy[:7], *idle[:4])
        ),
        ruled_out=(not_this("overload", "an overloaded group is busy on all of its devices"),),
        instead=instead(("straggler_gpu", 0.35)),
        explains=("overload", "straggler_gpu"),
        look_next="whether these devices serve one group, whether tokens flow, the idle rank's log and stack, its XIDs",
    )


def _empty(idle: list[Sight], busy: list[Sight]) -> bool:
    """The idle devices hold no model: they are not part of a group."""
    used = [g.last("gpu_memory_used_bytes") for g in idle]
    usual = [g.last("gpu_memory_used_bytes") for g in busy]
    return not any(math.isnan(v) for v in (*used, *usual)) and max(used) < 0.25 * min(usual)
