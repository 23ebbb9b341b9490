"""The prefix cache gives nothing: a fact, by itself no incident.

A counter of hits that stays at 0 has three readings: prefixes shorter than a cache block (hybrid models enlarge it to
hundreds or thousands of tokens), a counter that is not fed on this path, or prompts that share nothing. The counters of all
three are equal; time to first token of a repeated prompt decides. A ratio over recent lookups moves without any work when a
blocked head is looked up again and again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import known, moments
from ..sighting import Sighting
from ..track import Sight

ENOUGH_TOKENS = 1000.0
LARGE_BLOCK = 256.0
FELL = 0.5
LINES = 5
AGAIN = 3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine with a cache that is asked."""
    for seen in s.engines:
        yield from _no_hits(seen)
        yield from _lost(seen)
        yield from _collapse(seen)


def _no_hits(seen: Sight) -> Iterator[Clue]:
    asked, hits = seen.last("prefix_query_tokens_total"), seen.last("prefix_hit_tokens_total")
    track = seen.track("prefix_query_tokens_total")
    if not (asked >= ENOUGH_TOKENS and hits == 0) or track is None:
        return
    if seen.source("prefix_query_tokens_total") == "log" and track.count < LINES:
        return  # a single batch of a log: the first prompt has nothing to hit
    if seen.facts.get("arg_enable_prefix_caching", "").lower() in ("false", "0", "no"):
        return
    block = seen.fact("kv_block_tokens", "block_size")
    large = block >= LARGE_BLOCK
    if not large and "req_running" in seen.tracks:
        return  # prompts that share nothing are the usual reason, and nobody asked
    yield Clue(
        "prefix_cache_collapse",
        seen.subject,
        0.55 if large else 0.4,
        f"{asked:.0f} prompt tokens were looked up in the prefix cache and none was found. "
        + (
            f"A block holds {block:.0f} tokens: shorter shared prefixes can never hit. "
            if large
            else "Prefixes shorter than a block, a counter that is not fed, or prompts that share nothing: "
            "these counters cannot tell. "
        )
        + "By itself no incident.",
        seen.first_at,
        "block_larger_than_prefix" if large else "no_hits",
        "info",
        "cache",
        evidence=(
            told(seen, "prefix_query_tokens_total", asked, ENOUGH_TOKENS, ">="),
            told(seen, "prefix_hit_tokens_total", 0.0, 0.0, "="),
            told(seen, "kv_block_tokens", block),
        ),
        ruled_out=(
            not_this("long_context_kv_pressure", f"KV usage {seen.last('kv_usage_ratio'):.0%}: nothing is thrown out"),
        )
        if seen.last("kv_usage_ratio") < 0.9
        else (),
        instead=instead(("stale_telemetry", 0.3 if large else 0.4)),
        look_next="TTFT of one prompt sent twice: as slow again means no hit, much faster means the counter is wrong",
    )


def _lost(seen: Sight) -> Iterator[Clue]:
    """The engine says that it computes whole prompts again for want of their cache."""
    said = seen.notices.get("reprocessed")
    if said is None:
        return
    often = said.count >= AGAIN
    yield Clue(
        "prefix_cache_collapse",
        seen.subject,
        0.6 if often else 0.45,
        f"{said.count} whole prompt{'s were' if said.count > 1 else ' was'} computed again because what the cache held of "
        "it could not be used." + ("" if often else " Once or twice is no incident."),
        said.first_at,
        "reprocessed",
        "ticket" if often else "info",
        "cache",
        named=True,
        evidence=(counted("reprocessed", said.count),),
        ruled_out=(not_this("prefill_decode_interference", "the prompts were in the cache before"),),
        look_next="attention windows and checkpoints of this model, and what changes at the start of each prompt",
    )


def _collapse(seen: Sight) -> Iterator[Clue]:
    """The ratio fell against its own start, with prompts being computed all the while."""
    looks = [m for m in moments(seen) if not math.isnan(m.hit)]
    if len(looks) < 6:
        return
    third = len(looks) // 3
    before = sum(m.hit for m in looks[:third]) / third
    after = sum(m.hit for m in looks[-third:]) / third
    works = sum(1 for m in looks if known(m.prompt) > 0) >= len(looks) / 2
    blocked = any(known(m.waiting) >= 1 and known(m.prompt) <= 0 for m in looks)
    if before < 0.2 or after > FELL * before or not works or blocked:
        return
    yield Clue(
        "prefix_cache_collapse",
        seen.subject,
        0.5,
        f"The prefix hit ratio fell from {before:.0%} to {after:.0%} while prompts went on: more of each is computed.",
        looks[-third].at,
        "hit_ratio_fell",
        "ticket",
        "cache",
        evidence=(told(seen, "prefix_hit_ratio", after, before, "was"),),
        instead=instead(("replica_imbalance", 0.25)),
        look_next="one replica or all of them (routing, or a changed template), and evictions",
    )
