"""The host holds the engine back: CPU quota, front end, memory, or a GPU that waits for the CPU.

Periods that are throttled count, not the load of the node: six of 172 cores may be all the container has. A process at
100 % CPU is no evidence by itself, because workers spin while they wait; with nothing running it is no incident at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from ..clue import Clue, instead, not_this, ratio, told
from ..moments import Moment, known, moments
from ..queueing import FULL
from ..sighting import Sighting
from ..track import Sight

THROTTLED = 0.25
ONE_CORE = 0.9
HALF_IDLE = 0.8
LEAK_S, LEAK_LOOKS = 3600.0, 20
LEAK_SHARE = 0.03


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine with its host."""
    for seen in s.engines:
        looks = moments(seen)
        yield from _quota(s, seen, looks)
        yield from _front_end(s, seen, looks)
        yield from _memory(s, seen)
        yield from _starved_device(s, seen, looks)
    if not s.engines:
        for host in s.hosts:
            yield from _quota(s, host, [])


def _device(s: Sighting, seen: Sight) -> float:
    """How busy the busiest part of the engine's devices is; NaN where not told."""
    for signal in ("gpu_sm_active_ratio", "gpu_gr_engine_active_ratio", "gpu_util_ratio"):
        told_by = [t.mean for g in s.gpus_of(seen) if (t := g.track(signal)) is not None and t.count]
        if told_by:
            return max(told_by)
    return math.nan


def _quota(s: Sighting, seen: Sight, looks: list[Moment]) -> Iterator[Clue]:
    who, held = s.near(seen, "cgroup_cpu_throttled_ratio")
    if not held >= THROTTLED:
        return
    last = looks[-1] if looks else None
    if last is not None and last.inside < 1 and not any(m.running >= 1 for m in looks):
        return  # throttled while nothing runs: nobody feels it
    busy = _device(s, seen)
    deferred = known(last.deferred) if last is not None else 0.0
    grammar = deferred >= 1 or seen.said("grammar") > 0 or known(seen.last("req_waiting_grammar")) >= 1
    sure = 0.55 + (0.15 if held >= 0.8 else 0.0) + (0.1 if busy < 0.5 else 0.0) + (0.05 if grammar else 0.0)
    idle = f" and its devices are {busy:.0%} busy" if busy < HALF_IDLE else ""
    waiting = f"; {deferred:.0f} requests wait for more than room" if deferred >= 1 else ""
    yield Clue(
        "host_cpu_throttling",
        seen.subject,
        min(sure, 0.8 if busy < 0.5 else 0.6),
        f"The container hit its CPU quota in {held:.0%} of the scheduling periods{idle}{waiting}: threads "
        f"sized from the node's "
        "cores, not the quota, hold every step up.",
        who.first_at,
        "grammar_compilation" if grammar else "quota",
        "ticket",
        "service",
        evidence=(
            told(who, "cgroup_cpu_throttled_ratio", held, THROTTLED, ">="),
            told(seen, "gpu_sm_active_ratio", busy, HALF_IDLE, "<"),
            told(seen, "req_waiting_deferred", last.deferred if last is not None else math.nan),
            told(seen, "req_running", last.running if last is not None else math.nan),
        ),
        ruled_out=(not_this("overload", f"the devices are {busy:.0%} busy"),) if busy < 0.5 else (),
        instead=instead(*((("admission_deferred", 0.4),) if grammar else ())),
        explains=(
            "admission_deferred",
            "frontend_cpu_bottleneck",
            "prefill_decode_interference",
            "step_time_regression",
            "overload",
            "head_of_line_blocking",
        ),
        look_next="the quota against thread pools (OMP_NUM_THREADS, compile workers), and throttled periods during bursts",
    )


def _front_end(s: Sighting, seen: Sight, looks: list[Moment]) -> Iterator[Clue]:
    """One process at a core, requests late, no queue in the engine, the device half idle."""
    who, cores = s.near(seen, "process_cpu_ratio")
    busy = _device(s, seen)
    running = [m.running for m in looks if not math.isnan(m.running)]
    waiting = [m.waiting for m in looks if not math.isnan(m.waiting)]
    if (
        not (cores >= ONE_CORE and running and max(running) >= 1)
        or known(max(waiting, default=0.0)) > 0.1 * max(running) + 1
    ):
        return
    ttft, n = seen.mean_of("ttft_seconds")
    queue, _ = seen.mean_of("queue_seconds")
    prefill, _ = seen.mean_of("prefill_seconds")
    front = ttft - known(queue) - known(prefill) if n > 0 else math.nan
    share = seen.last("front_share_ratio")
    slow = ttft > s.config.slo.ttft_p95_s and front > 0.5 * ttft
    if not (slow or share >= 0.5) or busy >= HALF_IDLE:
        return
    yield Clue(
        "frontend_cpu_bottleneck",
        seen.subject,
        0.55 + (0.05 if busy < HALF_IDLE else 0.0),
        f"Requests wait before they reach the engine: {known(front, share):.2g} of TTFT lies in front of its "
        f"queue, {max(waiting, default=0.0):.0f} "
        f"wait inside, and one process uses {cores:.2f} cores.",
        looks[0].at,
        "event_loop",
        "ticket",
        "service",
        evidence=(
            told(who, "process_cpu_ratio", cores, ONE_CORE, ">="),
            told(seen, "ttft_seconds, mean", ttft),
            told(seen, "queue_seconds, mean", queue),
            told(seen, "gpu_sm_active_ratio", busy, HALF_IDLE, "<"),
        ),
        ruled_out=(not_this("overload", f"the engine's queue is {max(waiting, default=0.0):.0f}"),),
        look_next="CPU of the API server's process, event-loop lag, time to answer /health",
    )


def _memory(s: Sighting, seen: Sight) -> Iterator[Clue]:
    """Resident memory that only rises, for an hour or more."""
    track = seen.track("process_memory_bytes")
    if track is None or track.count < LEAK_LOOKS or track.span_s < LEAK_S or track.least <= 0:
        return
    gained = track.last - track.first
    series = [look["process_memory_bytes"] for _, look in seen.looks if "process_memory_bytes" in look]
    quarters = [series[i * (len(series) - 1) // 4] for i in range(5)]
    rises = all(b > a for a, b in pairwise(quarters)) and track.last >= 0.98 * track.greatest
    even = gained > 0 and min(b - a for a, b in pairwise(quarters)) > 0.1 * gained
    if not (rises and even) or gained < LEAK_SHARE * track.first:
        return
    done = seen.growth("req_finished_total")
    each = gained / done if done > 0 else math.nan
    per = f", about {each:.0f} bytes for each request" if not math.isnan(each) else ""
    yield Clue(
        "host_memory_leak",
        seen.subject,
        0.5,
        f"Resident memory rose evenly from {track.first / 2**30:.2f} to {track.last / 2**30:.2f} GiB in "
        f"{track.span_s / 3600:.1f} h{per}, without a plateau.",
        track.first_at,
        "resident_memory",
        "ticket",
        "host_memory",
        evidence=(
            told(seen, "process_memory_bytes", track.last, track.first, "was", track.span_s),
            told(seen, "bytes for each request", each),
        ),
        look_next="whether it stays when traffic stops, and which of the engine's processes grows",
    )


def _starved_device(s: Sighting, seen: Sight, looks: list[Moment]) -> Iterator[Clue]:
    """Requests run, few tokens come, and the device has a low clock, low power and no limit bit: it waits for the host."""
    gpus = s.gpus_of(seen)
    if not looks or not looks[-1].running >= 1 or len(gpus) != 1 or known(looks[-1].kv) >= FULL:
        return
    gpu = gpus[0]
    clock = ratio(gpu.last("gpu_sm_clock_hertz"), gpu.last("gpu_sm_clock_max_hertz"))
    power = ratio(gpu.last("gpu_power_watts"), gpu.last("gpu_power_limit_watts"))
    limited = known(gpu.last("gpu_throttled_ratio"))
    busy = _device(s, seen)
    if not (clock < 0.85 and power < 0.35 and limited <= 0.05 and busy < 0.6 and looks[-1].moves):
        return
    yield Clue(
        "host_io_contention",
        seen.subject,
        0.4,
        f"The device waits: clock at {clock:.0%}, power at {power:.0%} of its limit, {busy:.0%} busy, no limit in force, while "
        f"{looks[-1].running:.0f} requests run. The low clock is the effect, not the cause.",
        looks[0].at,
        "starved_device",
        "ticket",
        "service",
        evidence=(
            told(gpu, "gpu_sm_clock_hertz ÷ maximum", clock),
            told(gpu, "gpu_power_watts ÷ limit", power),
            told(gpu, "gpu_throttled_ratio", limited, 0.05, "<="),
        ),
        ruled_out=(not_this("gpu_throttling", "no limit is in force and power is low"),),
        instead=instead(("frontend_cpu_bottleneck", 0.35)),
        look_next="layers or experts offloaded to the CPU, PCIe traffic, CPU of the engine",
    )
