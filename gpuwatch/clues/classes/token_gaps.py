"""Gaps between tokens, told by histograms: long prompts whose prefill stops everybody else, however seldom one looks.

A step that holds a long prompt ends when the prompt is computed, and each request that decodes meanwhile waits for it once. So
in the distribution of gaps between tokens there are many short ones, nothing, and a few as long as such a step: about as
many long prompts as long gaps, or more gaps, and no queue and no preemption that would explain them. P95 hides it: twenty
gaps among ten thousand. Differences between the first page and the last are read; of a single page, all since the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from ...config import Slo
from ...model import Evidence, Histogram
from ..clue import Clue, instead, not_this
from ..moments import known, moments
from ..sighting import Sighting
from ..track import Sight

GAPS, PROMPTS = 5.0, 3.0
SLOW, USUAL = 3.0, 10.0
"""A gap is one of at least three times the objective for a token, and ten times the usual."""
LONG_TOKENS, LONGER = 1000.0, 8.0
LATE_SHARE, GAP_SHARE = 0.05, 0.2
"""So many first tokens late, or so many gaps for each request: below that nobody feels it."""
QUEUE = 1.0


class Tail(msgspec.Struct, frozen=True):
    """Observations above a bound, of all; `usual`: the bound below which half of them lie."""

    above: float
    bound: float
    count: float
    usual: float


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine whose tokens stop when long prompts come."""
    for seen in s.engines:
        found = _found(seen, s.config.slo_for(seen.facts.get("model", "")))
        if found is not None:
            yield found


def _found(seen: Sight, slo: Slo) -> Clue | None:
    if known(seen.growth("req_preempted_total")) > 0 or _queues(seen):
        return None
    gaps = _tail(seen, "itl_seconds", SLOW * slo.tpot_p95_s, USUAL)
    prompts = _tail(seen, "prompt_tokens", LONG_TOKENS, LONGER)
    if gaps is None or prompts is None or gaps.above < GAPS or prompts.above < PROMPTS:
        return None
    if gaps.above < 0.5 * prompts.above or prompts.above > 0.5 * prompts.count:
        return None
    late = _tail(seen, "ttft_seconds", slo.ttft_p95_s, 0.0)
    late_share = late.above / late.count if late is not None else 0.0
    if late_share < LATE_SHARE and gaps.above < GAP_SHARE * prompts.count:
        return None
    steps = _tail(seen, "iteration_tokens", prompts.bound, 0.0)
    looks = moments(seen)
    return Clue(
        "prefill_decode_interference",
        seen.subject,
        _sure(seen, prompts, steps),
        f"{prompts.above:.0f} of {prompts.count:.0f} prompts had more than {prompts.bound:.0f} tokens (usual: up to "
        f"{prompts.usual:.0f}), and {gaps.above:.0f} times a running request waited more than {gaps.bound:.2g} s for its next "
        f"token (usual: up to {gaps.usual:.2g} s), with no queue: their prefill fills whole steps.",
        _onset(seen, prompts.bound),
        "long_prompts",
        "ticket",
        "speed",
        evidence=(
            *_row("gaps between tokens above the bound", gaps.above, GAPS, ">="),
            *_row("long prompts", prompts.above, PROMPTS, ">="),
            *_row("steps with as many tokens", math.nan if steps is None else steps.above),
            *_row("late first tokens ÷ requests", math.nan if late is None else late_share, LATE_SHARE, ">="),
            *_row("req_waiting", looks[-1].waiting if looks else math.nan),
        ),
        ruled_out=(
            not_this("overload", "no queue stands"),
            not_this("engine_hang", "the gaps end"),
            *(() if math.isnan(seen.growth("req_preempted_total")) else (not_this("preemption_storm", "none"),)),
        ),
        instead=instead(("length_shift", 0.35)),
        look_next="the limit of a step's prefill tokens (vLLM: --max-num-batched-tokens, --long-prefill-token-threshold; "
        "SGLang: --chunked-prefill-size), and who sends the long prompts",
    )


def _sure(seen: Sight, prompts: Tail, steps: Tail | None) -> float:
    first, last = seen.histograms["itl_seconds"]
    if first is last:
        return 0.45  # since the start, which may be long ago
    return 0.6 if steps is not None and steps.above >= 0.5 * prompts.above else 0.5


def _queues(seen: Sight) -> bool:
    waiting = seen.track("req_waiting")
    return waiting is not None and waiting.mean > QUEUE


def _tail(seen: Sight, name: str, least: float, times: float) -> Tail | None:
    """What lies above the first bound that is at least `least` and `times` the usual; None where nothing was counted."""
    first, last = seen.histograms.get(name, (None, None))
    if first is None or last is None:
        return None
    counts, count = _grown(first, last)
    if count <= 0:
        return None
    usual = next((b for b, n in zip(last.bounds, counts, strict=True) if 2 * n >= count), math.inf)
    for bound, n in zip(last.bounds, counts, strict=True):
        if bound >= max(least, times * usual):
            return Tail(count - n, bound, count, usual)
    return None


def _grown(first: Histogram, last: Histogram) -> tuple[tuple[float, ...], float]:
    """What was counted between the two; all of the last where there is one only, or where the buckets are others."""
    if first is last or first.bounds != last.bounds or last.count <= first.count:
        return last.cumulative, last.count
    return tuple(b - a for a, b in zip(first.cumulative, last.cumulative, strict=True)), last.count - first.count


def _onset(seen: Sight, tokens: float) -> float:
    """The first look in which a long prompt was booked at once; else the first look."""
    before = math.nan
    for m in moments(seen):
        if m.prompt * (m.at - before) >= tokens:
            return m.at
        before = m.at
    return seen.first_at


def _row(signal: str, value: float, limit: float | None = None, op: str = "") -> tuple[Evidence, ...]:
    return () if math.isnan(value) else (Evidence(signal, value, limit, op, 0.0, "page"),)
