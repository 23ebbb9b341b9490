"""Steps got slower with another version: the same work, the same queue, a change between.

Two builds of one engine in one recording, with the inter-token latency of each: a step change at the change is a regression
of the build or its arguments until something else explains it. Tokens that come far slower than anybody can want, with no
queue, no prefill and a cache with room, are slow steps of an unknown cause: said, and not named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import known, last_episode, moments
from ..queueing import FULL
from ..sighting import Sighting
from ..track import Sight

SLOWER = 1.5
FAR, FAR_S, FAR_LOOKS = 20.0, 15.0, 3
"""Twenty times the objective for a token, for so long: 1.6 s a token by default."""


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that changed."""
    for seen in s.engines:
        changed = _change(seen)
        if changed is None:
            yield from _far_too_slow(seen, FAR * s.config.slo_for(seen.facts.get("model", "")).tpot_p95_s)
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


def _far_too_slow(seen: Sight, slow_s: float) -> Iterator[Clue]:
    """Requests run, tokens trickle, and nothing that was seen explains it."""
    slow = last_episode(
        moments(seen),
        lambda m: 0 < m.each < 1 / slow_s and known(m.prompt) <= 0 and known(m.waiting) < 1 and known(m.kv) < FULL,
    )
    if slow is None or slow.count < FAR_LOOKS or slow.span_s < FAR_S:
        return
    last = slow.last
    yield Clue(
        "step_time_regression",
        seen.subject,
        0.4,
        f"For {slow.span_s:.0f} s each of {last.running:.0f} running requests gets a token every {1 / last.each:.2g} s, "
        "without a queue, without prompts beside them and with room in the cache: the steps themselves are slow.",
        slow.first.at,
        "slow_steps",
        "ticket",
        "speed",
        evidence=(
            told(seen, "seconds for a token", 1 / last.each, slow_s, ">="),
            told(seen, "req_running", last.running),
            told(seen, "prompt_tokens_per_second", last.prompt),
            told(seen, "kv_usage_ratio", last.kv, FULL, "<"),
        ),
        ruled_out=(
            not_this("overload", "nobody waits"),
            not_this("engine_hang", f"tokens flow: {last.generated:.2g}/s"),
        ),
        instead=instead(("gpu_noisy_neighbor", 0.35), ("gpu_throttling", 0.3), ("host_cpu_throttling", 0.3)),
        ended_at=None if slow.lasts else last.at,
        look_next="one request alone; the link between the devices (nodes, PCIe), their clocks and their other processes",
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
