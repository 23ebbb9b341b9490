"""What the devices alone say: throttled, slower than their peers, or busy for somebody else.

A clock below its maximum is no throttling by itself: a device without work clocks down, with low power and no limit bit.
Throttling is a limit bit, or a low clock at full work with power or temperature at the limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, ratio, told
from ..moments import moments
from ..sighting import Sighting
from ..track import Sight, number

THROTTLED = 0.05
LOW_CLOCK = 0.85
AT_WORK = 0.7
HOT_C = 85.0
AT_LIMIT = 0.95
SHRUNK = 0.85


def clues(s: Sighting) -> Iterator[Clue]:
    """Every device, every group of peers, every pool that shrank between starts."""
    for gpu in s.gpus:
        if (found := _throttled(gpu)) is not None:
            yield found
    for seen in s.sights.values():
        yield from _said(seen)
    yield from _slow_peer(s)
    yield from _busy_for_others(s)
    for engine in s.engines:
        yield from _pool_shrank(engine)


def _work(gpu: Sight) -> float:
    values = [gpu.last(n) for n in ("gpu_sm_active_ratio", "gpu_gr_engine_active_ratio", "gpu_util_ratio")]
    return next((v for v in values if not math.isnan(v)), math.nan)


def _clock(gpu: Sight) -> float:
    """SM clock ÷ its maximum; NaN where the maximum is only the greatest that was seen at one look."""
    now, most = gpu.last("gpu_sm_clock_hertz"), gpu.last("gpu_sm_clock_max_hertz")
    return ratio(now, most)


def _throttled(gpu: Sight) -> Clue | None:
    held = max(
        (
            t.mean if t.count > 1 else t.last
            for n in ("gpu_throttled_ratio", "gpu_throttled_thermal_ratio", "gpu_throttled_brake_ratio")
            if (t := gpu.track(n)) is not None
        ),
        default=math.nan,
    )
    work, clock, hot = _work(gpu), _clock(gpu), gpu.last("gpu_temperature_celsius")
    power = ratio(gpu.last("gpu_power_watts"), gpu.last("gpu_power_limit_watts"))
    told_so = held > THROTTLED and not work < 0.2
    inferred = clock < LOW_CLOCK and work >= AT_WORK and (hot >= HOT_C or power >= AT_LIMIT)
    if not (told_so or inferred):
        return None
    low = clock < LOW_CLOCK
    thermal = hot >= HOT_C or gpu.last("gpu_throttled_thermal_ratio") > THROTTLED
    sure = (0.55 + (0.1 if low else 0.0) + (0.05 if hot >= HOT_C else 0.0)) if told_so else 0.45
    name = gpu.facts.get("index", gpu.subject.gpu)
    return Clue(
        "gpu_throttling",
        gpu.subject,
        sure,
        f"Device {name} is held down"
        + (f" for {held:.0%} of the time" if told_so else "")
        + (f": clock at {clock:.0%} of its maximum" if low else "")
        + (f", {hot:.0f} °C" if not math.isnan(hot) else "")
        + (f" while it works ({work:.0%})." if not math.isnan(work) else "; whether it worked meanwhile is not shown."),
        gpu.first_at,
        "thermal" if thermal else "limit",
        "ticket",
        "device",
        evidence=(
            told(gpu, "gpu_throttled_ratio", held, THROTTLED, ">"),
            told(gpu, "gpu_sm_clock_hertz ÷ maximum", clock, LOW_CLOCK, "<"),
            told(gpu, "gpu_temperature_celsius", hot, HOT_C, ">="),
            told(gpu, "gpu_power_watts ÷ limit", power),
            told(gpu, "work", work),
        ),
        ruled_out=(not_this("gpu_noisy_neighbor", f"the clock is at {clock:.0%}"),) if low else (),
        instead=instead(*(() if told_so else (("step_time_regression", 0.25),))),
        explains=("straggler_gpu", "step_time_regression"),
        look_next="clock event reasons and fans, and whether its peers are held down, too",
    )


def _said(seen: Sight) -> Iterator[Clue]:
    """DCGM's own health check names the device and the limit."""
    told_so = seen.notices.get("clock_held_down")
    if told_so is None:
        return
    devices = ", ".join(sorted(told_so.words.get("index", {}))[:8])
    thermal = "thermal" in told_so.words.get("cause", {})
    yield Clue(
        "gpu_throttling",
        seen.subject,
        0.65,
        f"The health check of DCGM says that a {'thermal' if thermal else 'power'} limit holds device {devices} down "
        f"({told_so.count} messages); by how much and whether it worked meanwhile is not said.",
        told_so.first_at,
        "thermal" if thermal else "limit",
        "ticket",
        "device",
        evidence=(counted("clock_held_down", told_so.count),),
        named=True,
        explains=("straggler_gpu", "step_time_regression"),
        look_next="clock, temperature, power and work of that device and its peers at that time",
    )


def _slow_peer(s: Sighting) -> Iterator[Clue]:
    """One device of a node at a much lower clock than its peers at the same work."""
    nodes: dict[str, list[Sight]] = {}
    for gpu in s.gpus:
        if "/" not in gpu.subject.gpu and gpu.last("gpu_sm_clock_hertz") > 0 and _work(gpu) >= 0.5:
            nodes.setdefault(gpu.facts.get("node", ""), []).append(gpu)
    for group in nodes.values():
        if len(group) < 3:
            continue
        usual = statistics.median(g.last("gpu_sm_clock_hertz") for g in group)
        slow = [g for g in group if g.last("gpu_sm_clock_hertz") < LOW_CLOCK * usual]
        if len(slow) != 1:
            continue
        gpu = slow[0]
        clock = gpu.last("gpu_sm_clock_hertz")
        yield Clue(
            "straggler_gpu",
            gpu.subject,
            0.55,
            f"Device {gpu.facts.get('index', gpu.subject.gpu)} runs at {clock / 1e6:.0f} MHz, its {len(group) - 1} peers at "
            f"{usual / 1e6:.0f} MHz with the same work: a tensor-parallel group is as fast as this one.",
            gpu.first_at,
            "slow_clock",
            "ticket",
            "device",
            evidence=(told(gpu, "gpu_sm_clock_hertz", clock, LOW_CLOCK * usual, "<"),),
            instead=instead(("gpu_throttling", 0.4)),
            look_next="its temperature, power limit and clock event reasons",
        )


def _busy_for_others(s: Sighting) -> Iterator[Clue]:
    """Every engine is idle throughout, and their device is not."""
    if not s.engines or s.span_s < 20:
        return
    for engine in s.engines:
        looks = moments(engine)
        if len(looks) < 3 or any(m.running >= 1 or m.waiting >= 1 or m.moves for m in looks):
            return
    for gpu in s.gpus_of(s.engines[0]):
        work = gpu.track("gpu_dram_active_ratio") or gpu.track("gpu_sm_active_ratio") or gpu.track("gpu_util_ratio")
        if work is None or work.count < 3 or work.least < 0.3:
            continue
        yield Clue(
            "gpu_noisy_neighbor",
            gpu.subject,
            0.5,
            f"Nothing runs in the engine and its device is {work.least:.0%} to {work.greatest:.0%} busy: "
            f"somebody else works on it.",
            gpu.first_at,
            "foreign_work",
            "ticket",
            "device",
            evidence=(told(gpu, "gpu_sm_active_ratio, least", work.least, 0.3, ">="),),
            look_next="the device's process list",
        )


def _pool_shrank(engine: Sight) -> Iterator[Clue]:
    """The same engine, started again, has a smaller pool."""
    was, now = (
        number(engine.first_facts.get("kv_capacity_tokens", "")),
        number(engine.facts.get("kv_capacity_tokens", "")),
    )
    if not now < SHRUNK * was:
        return
    changed = [k for k, v in engine.facts.items() if k.startswith("arg_") and engine.first_facts.get(k) != v]
    if changed:
        return
    yield Clue(
        "gpu_noisy_neighbor",
        engine.subject,
        0.6,
        f"The KV pool is {now:.0f} tokens, it was {was:.0f} at the start before, with the same arguments: something else held "
        "device memory while the engine measured what was free.",
        engine.first_at,
        "pool_shrunk_at_start",
        "ticket",
        "device",
        evidence=(told(engine, "kv_capacity_tokens", now, was, "was"),),
        ruled_out=(not_this("long_context_kv_pressure", "the pool is smaller than it was"),),
        explains=("long_context_kv_pressure", "overload"),
        look_next="process list of the device at start; start engines that share one device one after the other",
    )
