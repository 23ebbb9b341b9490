"""Steps got slower with another version: the same work, the same queue, a change between.

Two builds of one engine in one recording, with the inter-token latency of each: a step change at the change is a regression
of the build or its arguments until something else explains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import known, moments
from ..sighting import Sighting
from ..track import Sight

SLOWER = 1.5


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that changed."""
    for seen in s.engines:
        changed = _change(seen)
        if changed is None:
            continue
        at, what = changed
        looks = [m for m in moments(seen) if m.each > 0 and known(m.kv) < 0.9]
        before = [m.each for m in looks if m.at < at]
        after = [m.each for m in looks if m.at > at]
        running_before = [m.running for m in looks if m.at < at]
        running_after = [m.running for m in looks if m.at > at]
        if len(before) < 3 or len(after) < 3:
            continue
        was, now = sum(before) / len(before), sum(after) / len(after)
        load = (sum(running_after) / len(running_after)) / (sum(running_before) / len(running_before))
        if now * SLOWER > was or load > 1.25:
            continue
        yield Clue(
            "step_time_regression",
            seen.subject,
            0.55,
            f"Since {what} each running request gets {now:.3g} tokens/s, {was:.3g} before, at {load:.2g} times "
            f"the running requests.",
            at,
            "change",
            "ticket",
            "speed",
            evidence=(
                told(seen, "output tokens/s for each that runs", now, was, "was"),
                told(seen, "running requests, after ÷ before", load),
            ),
            ruled_out=(not_this("overload", f"running requests went × {load:.2g}"),),
            instead=instead(("quantization_fallback", 0.3), ("host_cpu_throttling", 0.3)),
            look_next="the same load on the old build; latency of requests with and without guided decoding",
        )


def _change(seen: Sight) -> tuple[float, str] | None:
    for name in ("version", "arguments", "restart"):
        event = seen.events.get(name)
        if event is not None and not math.isnan(event.first_at):
            return event.first_at, {
                "version": "the new version",
                "arguments": "the new arguments",
                "restart": "the restart",
            }[name]
    if "restarted" in seen.notices:
        return seen.notices["restarted"].first_at, "the restart"
    return None
