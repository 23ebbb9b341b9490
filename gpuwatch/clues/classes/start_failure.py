"""Start failure and cold start: the engine never comes up, or takes its time.

A start has phases (weights, compilation, graph capture, the first request); their sum is what an autoscaler must wait for.
A model whose longest request does not fit, or a pool of nothing, is refused at start. A first request that takes minutes
(autotuning) and whose client leaves before it ends can leave the engine wedged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..sighting import Sighting
from ..track import Sight

OVER_S = 60.0
"""A start that was followed by so much service is history."""
PHASES = {"weights_loaded": "weights", "compiled": "compilation", "graphs_captured": "graph capture"}
SLOW_START_S = 30.0
LONG_FIRST_STEP_S = 30.0
"""A step of half a minute is warm-up (autotuning, capture), not work."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Starts of every engine."""
    for seen in s.engines:
        yield from _does_not_fit(seen)
        yield from _gave_up(seen)
        yield from _warm_up_cut(seen)
        yield from _phases(seen)
        yield from _still_waits(seen)


def _does_not_fit(seen: Sight) -> Iterator[Clue]:
    told_so = seen.notices.get("does_not_fit")
    if told_so is None:
        return
    need, have = told_so.last("need_bytes", "need_tokens", "need"), told_so.last("have_bytes", "have_tokens", "have")
    warm_up = "prefill" in told_so.words.get("phase", {})
    short = not warm_up and (math.isnan(have) or have <= 0)
    why = "one request of the longest allowed length does not fit the pool"
    if warm_up:
        why = "a prefill of as many tokens as its limit allows does not fit into device memory"
    elif short:
        why = "nothing is left on the device for its KV pool"
    yield Clue(
        "start_failure",
        seen.subject,
        0.75,
        f"The engine refuses to start: {why}"
        + (f" (needs {need:.3g}, has {have:.3g})" if not math.isnan(need + have) else "")
        + (f" ({need:.0f} tokens)" if warm_up and not math.isnan(need) else "")
        + ".",
        told_so.first_at,
        "prefill_does_not_fit" if warm_up else "no_room_for_kv" if short else "does_not_fit",
        "page",
        evidence=(counted("does_not_fit", told_so.count), told(seen, "needed", need), told(seen, "at hand", have)),
        instead=instead(("gpu_noisy_neighbor", 0.4 if short else 0.25)),
        explains=("engine_crash", "cold_start"),
        named=True,
        look_next="who else holds memory on the device, and whether two engines started on it at once",
    )


def _gave_up(seen: Sight) -> Iterator[Clue]:
    """The engine ended while it was starting, and does not say why in this message."""
    said = seen.notices.get("start_failed")
    if said is None or "does_not_fit" in seen.notices or "out_of_memory" in seen.notices:
        return
    yield Clue(
        "start_failure",
        seen.subject,
        0.6,
        f"The engine gave up while it was starting ({said.count} messages); what stopped it stands above this message.",
        said.first_at,
        "gave_up",
        "ticket",
        evidence=(counted("start_failed", said.count),),
        instead=instead(("engine_crash", 0.3)),
        explains=("engine_crash", "cold_start"),
        named=True,
        look_next="the first error above it: memory, a missing file, an unsupported model or device",
    )


def _warm_up_cut(seen: Sight) -> Iterator[Clue]:
    """A first step of minutes, a client that leaves, and nothing after it."""
    step = seen.notices.get("step")
    longest = step.greatest("seconds", "step_seconds") if step is not None else seen_step(seen)
    gone = [seen.notices[k] for k in ("client_disconnected", "sequence_not_found") if k in seen.notices]
    if not gone or math.isnan(longest) or longest < LONG_FIRST_STEP_S:
        return
    left_at = min(n.first_at for n in gone)
    later = [t for t in step.times if t > left_at] if step is not None else []
    generated = step.greatest("generation_tokens") if step is not None else math.nan
    if later or generated > 0:
        return
    yield Clue(
        "start_failure",
        seen.subject,
        0.7,
        f"The first step took {longest:.0f} s (warm-up), its client left before it ended, and no step has followed: the "
        "engine is wedged by the aborted request.",
        left_at,
        "warm_up_aborted",
        "page",
        evidence=(
            told(seen, "longest step (seconds)", longest, LONG_FIRST_STEP_S, ">="),
            counted("client_disconnected", float(sum(n.count for n in gone))),
            told(seen, "steps since", 0.0),
        ),
        ruled_out=(not_this("overload", "one request is in the engine"),),
        instead=instead(("engine_hang", 0.4), ("cold_start", 0.3)),
        explains=("engine_hang", "cold_start", "retry_storm"),
        look_next="probe and client timeouts against the warm-up, and whether the device is idle now",
    )


def seen_step(seen: Sight) -> float:
    """The longest step that a gauge showed, seconds."""
    track = seen.track("step_seconds")
    return track.greatest if track is not None else math.nan


def _phases(seen: Sight) -> Iterator[Clue]:
    spent: dict[str, float] = {}
    for kind, name in PHASES.items():
        if kind in seen.notices:
            seconds = seen.notices[kind].greatest("seconds")
            if not math.isnan(seconds):
                spent[name] = seconds
    whole = seen.notices.get("engine_initialised")
    init_s = whole.greatest("seconds") if whole is not None else math.nan
    total = max(sum(spent.values()), 0.0 if math.isnan(init_s) else init_s)
    if total < SLOW_START_S or not spent:
        return
    if _serves_since(seen):
        return
    most = max(spent, key=lambda k: spent[k])
    rest = total - sum(v for k, v in spent.items() if k != "weights") if not math.isnan(init_s) else 0.0
    parts = " + ".join(f"{name} {seconds:.3g} s" for name, seconds in sorted(spent.items(), key=lambda p: -p[1]))
    other = f" + {rest:.0f} s that no line accounts for" if rest > 1 else ""
    begun = [seen.notices[k].first_at for k in (*PHASES, "engine_initialised") if k in seen.notices]
    yield Clue(
        "cold_start",
        seen.subject,
        0.7,
        f"Starting took at least {total:.0f} s: {parts}{other}. {most.capitalize()} holds most of it. Anything that adds "
        "replicas must wait longer than this.",
        min(begun),
        most.replace(" ", "_"),
        "info",
        "start",
        evidence=(
            *(told(seen, f"{name} (seconds)", value) for name, value in spent.items()),
            told(seen, "initialisation (seconds)", init_s),
        ),
        ruled_out=(not_this("start_failure", "the engine came up"),) if not math.isnan(init_s) else (),
        named=True,
        look_next="when the first answer came: process start and warm-up requests are in no line",
    )


def _serves_since(seen: Sight) -> bool:
    served = [at for at, look in seen.looks if look.get("req_running", 0) > 0]
    return bool(served) and served[-1] - served[0] >= OVER_S


def _still_waits(seen: Sight) -> Iterator[Clue]:
    """A launcher that says again and again that its workers are not up, and nothing after it."""
    said = seen.notices.get("start_waits")
    if said is None or seen.looks or "start_failed" in seen.notices or seen.last_at > said.last_at + OVER_S:
        return
    for_s = said.last_at - said.first_at
    if for_s < SLOW_START_S:
        return
    yield Clue(
        "cold_start",
        seen.subject,
        0.5,
        f"The launcher has waited {for_s:.0f} s for its workers and they are not up at the end of what was given.",
        said.first_at,
        "workers",
        "info",
        "start",
        evidence=(counted("start_waits", said.count, for_s),),
        instead=instead(("start_failure", 0.35)),
        look_next="the workers' own lines: a download, weights from a slow disk, or an error",
    )
