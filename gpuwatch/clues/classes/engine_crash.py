"""Engine crash and memory failures: the engine dies, or an allocation on the device fails.

An out-of-memory message carries its own test. What is "reserved but unallocated" is the allocator's slack: comparable to
the request, it is fragmentation; far below it, something asked for memory that nobody had planned (logits of a whole
prompt, a batch of images). While the engine is still starting it is a failed start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..sighting import Sighting
from ..track import Notice, Sight

FRAGMENTED = 0.5
"""Slack of at least half the request: with what is free it would have been enough, had it been in one piece."""
START = ("weights_loaded", "model_loaded", "compiled", "graphs_captured", "engine_initialised")


def clues(s: Sighting) -> Iterator[Clue]:
    """Deaths and failed allocations of every engine."""
    for seen in s.engines:
        oom, dead = (
            seen.notices.get("out_of_memory"),
            seen.notices.get("engine_dead") or seen.notices.get("process_crashed"),
        )
        if oom is not None:
            yield _out_of_memory(seen, oom, dead)
        elif dead is not None and "memory_leak_detected" not in seen.notices:
            yield _dead(seen, dead)
        elif "device_error" in seen.notices and not {"xid", "ecc_error", "start_failed"} & set(seen.notices):
            yield _device_error(seen, seen.notices["device_error"])
        if (killed := seen.notices.get("killed_for_memory")) is not None:
            yield _killed(seen, killed)
        if (leak := seen.notices.get("memory_leak_detected")) is not None:
            yield Clue(
                "engine_crash",
                seen.subject,
                0.6,
                f"The engine's own check found KV memory that nobody holds and nobody may evict ({leak.count} messages): "
                "a leak of its pool; such builds stop at this check.",
                leak.first_at,
                "kv_pool_leak",
                "ticket" if dead is None else "page",
                evidence=(counted("memory_leak_detected", leak.count),),
                ruled_out=(
                    not_this("long_context_kv_pressure", "the check counts memory beyond what requests and cache hold"),
                ),
                named=True,
                look_next="whether KV usage returns to 0 once the engine is drained",
            )
        yield from _restarts(seen)


def served(seen: Sight, before: float) -> bool:
    """Whether the engine had answered requests by then."""
    return any(
        at < before and (look.get("req_running", 0) > 0 or look.get("generated_tokens_per_second", 0) > 0)
        for at, look in seen.looks
    )


def starting(seen: Sight, at: float) -> bool:
    """Whether the engine was still starting: start-up messages before this, no requests since."""
    began = [n.first_at for k in START if (n := seen.notices.get(k)) is not None]
    ready = seen.notices.get("engine_initialised")
    return bool(began) and min(began) <= at and not served(seen, at) and (ready is None or ready.first_at > at)


def _out_of_memory(seen: Sight, oom: Notice, dead: Notice | None) -> Clue:
    asked, free, slack = oom.last("asked_bytes"), oom.last("free_bytes"), oom.last("reserved_bytes")
    evidence = [counted("out_of_memory", oom.count)]
    for name, value in (("bytes requested", asked), ("bytes free", free), ("bytes reserved and unallocated", slack)):
        if not math.isnan(value):
            evidence.append(told(seen, name, value))
    sized = not math.isnan(asked) and not math.isnan(slack) and asked > 0
    fragmented = sized and slack >= FRAGMENTED * asked and slack + (0.0 if math.isnan(free) else free) >= asked
    died = " The engine died of it." if dead is not None else ""
    if fragmented:
        return Clue(
            "memory_fragmentation",
            seen.subject,
            0.65,
            f"An allocation of {mib(asked)} failed while the allocator held {mib(slack)} in pieces.{died}",
            oom.first_at,
            "allocator_slack",
            "page" if dead else "ticket",
            evidence=tuple(evidence),
            ruled_out=(
                not_this("long_context_kv_pressure", "the KV pool is set aside at start; this is the allocator's"),
            ),
            instead=instead(("engine_crash", 0.3)),
            explains=("engine_crash",),
            named=True,
            look_next="allocated against reserved memory over the last hours",
        )
    if starting(seen, oom.first_at) or "start" in oom.words.get("phase", {}):
        return Clue(
            "start_failure",
            seen.subject,
            0.65,
            f"The engine ran out of device memory while it was starting{_size(asked, free)}.",
            oom.first_at,
            "out_of_memory",
            "page",
            evidence=tuple(evidence),
            explains=("engine_crash", "cold_start"),
            ruled_out=_not_fragments(asked, slack, sized),
            instead=instead(("gpu_noisy_neighbor", 0.3)),
            named=True,
            look_next="who else holds memory on this device (its process list)",
        )
    return Clue(
        "engine_crash",
        seen.subject,
        0.6 if sized else 0.5,
        f"An allocation on the device failed{_size(asked, free)}: memory that the engine's plan does not hold, "
        f"such as logits of whole prompts (prompt_logprobs) or large images.{died}",
        oom.first_at,
        "unplanned_allocation" if sized else "out_of_memory",
        "page" if dead else "ticket",
        evidence=tuple(evidence),
        ruled_out=_not_fragments(asked, slack, sized),
        instead=() if sized else instead(("memory_fragmentation", 0.35)),
        named=True,
        look_next="the size as chunk × vocabulary × bytes, and what the requests in flight asked for",
    )


def _not_fragments(asked: float, slack: float, sized: bool) -> tuple:  # type: ignore[type-arg]
    if not sized:
        return ()
    return (
        not_this(
            "memory_fragmentation", f"only {mib(slack)} are reserved and unallocated, {mib(asked)} were asked for"
        ),
    )


def _size(asked: float, free: float) -> str:
    if math.isnan(asked):
        return ""
    return f" ({mib(asked)} asked for" + ("" if math.isnan(free) else f", {mib(free)} free") + ")"


def mib(size_bytes: float) -> str:
    """A size in words."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def _dead(seen: Sight, dead: Notice) -> Clue:
    first = [(n.first_at, k) for k, n in seen.notices.items() if n.first_at < dead.first_at and k in CAUSES]
    before = f" Before it: {min(first)[1].replace('_', ' ')}." if first else _end(seen)
    return Clue(
        "engine_crash",
        seen.subject,
        0.6,
        f"The engine's core is dead ({dead.count} messages); requests get errors until it is started again.{before}",
        dead.first_at,
        "engine_dead",
        "page",
        evidence=(counted("engine_dead", dead.count),),
        named=True,
        ruled_out=(not_this("engine_hang", "a process that has ended says so; one that hangs does not"),),
        look_next="the first error above it in the log, the exit code, and the kernel's log",
    )


def _end(seen: Sight) -> str:
    """How a worker ended, where the log says its code: a signal from outside, or an error of its own."""
    ended = seen.notices.get("process_crashed")
    code = ended.last("code") if ended is not None else math.nan
    if code == -9:
        return " A worker was killed from outside (SIGKILL): the kernel for want of memory, a limit, or a person."
    if code < 0:
        return f" A worker was ended by signal {-code:.0f}."
    if code > 0:
        return f" A worker ended with code {code:.0f}; its error stands above this message."
    return " What killed it stands above this message."


def _device_error(seen: Sight, said: Notice) -> Clue:
    """A kernel failed and the context with it; the line that reports it need not be the one that did it."""
    return Clue(
        "engine_crash",
        seen.subject,
        0.6,
        f"A kernel failed on the device ({said.count} messages): everything of this process on it is lost. Such errors are "
        "reported late, by whichever call comes next.",
        said.first_at,
        "device_error",
        "ticket",
        evidence=(counted("device_error", said.count),),
        instead=instead(("gpu_hardware_fault", 0.3)),
        explains=("engine_hang", "prefill_decode_interference"),
        named=True,
        look_next="XIDs in the kernel's log at that time, and whether the same request does it on another device",
    )


def _killed(seen: Sight, killed: Notice) -> Clue:
    """The kernel says whom it killed; only an engine's own end is the engine's incident."""
    ours = "1" in killed.words.get("own", {})
    limited = "1" in killed.words.get("limited", {})
    held = killed.greatest("resident_bytes")
    return Clue(
        "engine_crash",
        seen.subject,
        0.7 if ours else 0.45,
        f"The kernel killed {'a process that an engine may run under' if ours else 'another process'} for want of host memory"
        + (" (the limit of its container)" if limited else "")
        + ("" if math.isnan(held) else f"; it held {mib(held)}")
        + ". This is the host's memory, not the device's.",
        killed.first_at,
        "killed_for_memory",
        "ticket" if ours else "info",
        evidence=(counted("killed_for_memory", killed.count), told(seen, "resident bytes of the killed process", held)),
        ruled_out=(
            not_this("memory_fragmentation", "the kernel killed for host memory; no allocation on the device failed"),
        ),
        instead=instead(("host_memory_leak", 0.4)),
        explains=("engine_hang", "capacity_loss"),
        named=True,
        look_next="resident memory of the engine's processes before it (a steady rise or a jump at load), and the limit",
    )


CAUSES = frozenset(
    {
        "ecc_error",
        "xid",
        "out_of_memory",
        "collective_timeout",
        "watchdog_timeout",
        "memory_leak_detected",
        "transfer_failed",
        "killed_for_memory",
        "device_error",
    }
)


def _restarts(seen: Sight) -> Iterator[Clue]:
    again = seen.events.get("restart")
    n = max(again.count if again else 0, seen.said("restarted"))
    if n < 3 or seen.events.get("ambiguous") is not None:
        return
    at = min(k.first_at for k in (again, seen.notices.get("restarted")) if k is not None)
    yield Clue(
        "engine_crash",
        seen.subject,
        0.5,
        f"The engine was started {n} times in what was seen.",
        at,
        "restarts",
        evidence=(told(seen, "restarts", float(n)),),
        instead=instead(("overload", 0.3)),
        look_next="the reason of the last exit (probe, out of memory, error), and the queue just before it",
    )
