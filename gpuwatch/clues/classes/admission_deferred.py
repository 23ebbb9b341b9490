"""Deferred admission: requests wait for an adapter, a grammar or remote KV while there is room for them.

Engines that tell why a request waits (by reason, a grammar queue, adapter slots, transfer queues) decide it. TGI books the
compilation of a grammar as queue time: one long queue time with a grammar and a small batch is no lack of capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import Moment, known, moments
from ..queueing import FULL
from ..sighting import Sighting
from ..track import Sight

LONG_GRAMMAR_S = 2.0
SHARE = 0.5


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine whose requests wait for something other than room."""
    for seen in s.engines:
        yield from _deferred(seen)
        yield from _adapters(seen)
        yield from _grammar_message(seen)


def _deferred(seen: Sight) -> Iterator[Clue]:
    looks = moments(seen)
    held = [m for m in looks if known(m.deferred) >= 1]
    grammar = seen.track("req_waiting_grammar")
    if grammar is not None and grammar.last >= 1 and not held:
        n, waiting, last, count = grammar.last, known(seen.last("req_waiting"), grammar.last), looks[-1], grammar.count
    elif held and held[-1].at == looks[-1].at:
        last = held[-1]
        n, waiting, count = last.deferred, last.waiting, len(held)
    else:
        return
    if n < 3 or n < SHARE * known(waiting, n) or known(last.kv) >= FULL:
        return
    if (
        known(seen.last("req_waiting_bootstrap")) + known(seen.last("req_waiting_prealloc")) >= SHARE * n
        and grammar is None
    ):
        return  # they wait for the other side of a disaggregated pair: fleet.py
    if len(held) > 1 and _parks(held):
        yield _parked(seen, held)
        return
    cause, mechanism = _cause(seen, grammar.last if grammar is not None else math.nan)
    stuck = last.running < 1 and known(last.generated) <= 0 and count > 1
    sure = (0.6 if mechanism else 0.5) + (0.1 if count > 1 else 0.0)
    yield Clue(
        "admission_deferred",
        seen.subject,
        min(sure, 0.6) if count < 2 else sure,
        f"{n:.0f} of {known(waiting, n):.0f} waiting requests are deferred{cause}: they wait for something other than room"
        + (f" ({1 - last.kv:.0%} of the cache is free)." if not math.isnan(last.kv) else "."),
        (held[0].at if held else seen.first_at),
        mechanism or "deferred",
        "page" if stuck else "ticket",
        "queue",
        evidence=(
            told(seen, "req_waiting_deferred", n, 3.0, ">="),
            told(seen, "req_waiting", waiting),
            told(seen, "req_running", last.running),
            told(seen, "kv_usage_ratio", last.kv, FULL, "<"),
        ),
        ruled_out=(
            not_this("overload", "the engine itself says that they do not wait for capacity"),
            *((not_this("long_context_kv_pressure", f"KV usage {last.kv:.0%}"),) if not math.isnan(last.kv) else ()),
        ),
        instead=instead(*(() if mechanism else (("pd_transfer_stall", 0.3),))),
        explains=("head_of_line_blocking", "max_tokens_over_reservation", "overload"),
        look_next="what they wait for: adapters in use against slots, new schemas, a KV connector's transfers",
    )


def _parks(held: list[Moment]) -> bool:
    """Fewer run, more are deferred, and the cache fills all the same: blocks are held for what has not come."""
    first, last = held[0], held[-1]
    return last.deferred > first.deferred and last.running < first.running and last.kv > first.kv + 0.05


def _parked(seen: Sight, held: list[Moment]) -> Clue:
    first, last = held[0], held[-1]
    return Clue(
        "pd_transfer_stall",
        seen.subject,
        0.55,
        f"Deferred requests went {first.deferred:.0f} → {last.deferred:.0f} and KV usage {first.kv:.0%} → "
        f"{last.kv:.0%} while fewer run "
        f"({first.running:.0f} → {last.running:.0f}): blocks are held for KV that has not come.",
        first.at,
        "remote_kv",
        "ticket",
        "queue",
        evidence=(
            told(seen, "req_waiting_deferred", last.deferred, first.deferred, "was"),
            told(seen, "kv_usage_ratio", last.kv, first.kv, "was"),
            told(seen, "req_running", last.running, first.running, "was"),
        ),
        ruled_out=(not_this("overload", "fewer run than before"),),
        instead=instead(("admission_deferred", 0.45), ("engine_hang", 0.3)),
        explains=("overload",),
        look_next="the prefill side, and errors of the KV connector",
    )


def _cause(seen: Sight, grammar: float) -> tuple[str, str]:
    if known(grammar) >= 1 or seen.said("grammar"):
        return " for a grammar", "grammar"
    if known(seen.last("lora_waiting_adapters")) >= 1:
        return " for an adapter", "adapter"
    if seen.said("transfer_timeout", "transfer_failed") or known(seen.last("req_transferring")) >= 1:
        return " for remote KV", "remote_kv"
    return "", ""


def _adapters(seen: Sight) -> Iterator[Clue]:
    """More adapters than slots: only those in the pool can be batched, the others are loaded in the batch's path."""
    slots, used = seen.fact("lora_slots", "max_lora"), seen.last("lora_slots_used")
    wanted = known(seen.last("lora_running_adapters")) + known(seen.last("lora_waiting_adapters"))
    waiting = known(seen.last("req_waiting"))
    crowded = known(seen.last("lora_waiting_adapters")) >= 1 or wanted > slots or used >= slots > 0
    if not crowded or math.isnan(slots) or waiting < 3 or known(seen.last("kv_usage_ratio")) >= FULL:
        return
    sure = 0.6 if wanted > slots or known(seen.last("lora_waiting_adapters")) >= 1 else 0.45
    yield Clue(
        "admission_deferred",
        seen.subject,
        sure,
        f"Adapters take turns: {max(wanted, known(used)):.0f} are wanted, {slots:.0f} fit at once, and "
        f"{waiting:.0f} requests wait "
        "with cache to spare.",
        seen.first_at,
        "adapter",
        "ticket",
        "queue",
        evidence=(
            told(seen, "lora_slots", slots),
            told(seen, "lora_slots_used", used),
            told(seen, "adapters wanted", wanted, slots, ">"),
            told(seen, "req_waiting", waiting),
        ),
        ruled_out=(not_this("long_context_kv_pressure", f"KV usage {known(seen.last('kv_usage_ratio')):.0%}"),),
        explains=("head_of_line_blocking", "max_tokens_over_reservation", "overload"),
        look_next="distinct adapters per minute against the slots, and the load time of one",
    )


def _grammar_message(seen: Sight) -> Iterator[Clue]:
    said = seen.notices.get("grammar")
    if said is None:
        return
    longest = said.greatest("queue_seconds", "seconds")
    if math.isnan(longest) or longest < LONG_GRAMMAR_S:
        return
    plain = seen.notices.get("request")
    usual = plain.numbers["queue_seconds"].least if plain is not None and "queue_seconds" in plain.numbers else math.nan
    running = known(seen.last("req_running"), math.nan)
    yield Clue(
        "admission_deferred",
        seen.subject,
        0.6,
        f"A request with a grammar waited {longest:.3g} s in the queue"
        + (f", others {usual:.2g} s" if usual < longest / 5 else "")
        + ": compiling the grammar holds admission, and is booked as queue time. That is no lack of capacity.",
        said.first_at,
        "grammar",
        "ticket",
        "queue",
        evidence=(
            counted("grammar", said.count),
            told(seen, "queue seconds with a grammar", longest, LONG_GRAMMAR_S, ">="),
            told(seen, "queue seconds without", usual),
            told(seen, "req_running", running),
        ),
        instead=instead(("overload", 0.3), ("host_cpu_throttling", 0.25)),
        explains=("overload", "head_of_line_blocking"),
        look_next="queue time with and without a grammar, the batch's size meanwhile, and CPU throttling of the container",
    )
