"""Prefill starves decode: every step carries one long prefill chunk and one token for each request in decode.

Prompt tokens flow fast, output tokens trickle, nobody waits, the cache has room. It looks idle or hung to whoever watches
output tokens alone. What each running request got before or after is the measure; steps of known content prove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, instead, not_this, told
from ..moments import Moment, known, moments
from ..sighting import Sighting
from ..track import Sight

FALL = 0.25
"""A quarter of what a running request gets without prefill beside it."""
SLOW_EACH = 2.0
FAST_PROMPT = 300.0
SLOW_STEP_S = 0.3
LASTS_S = 5.0
ROOM = 0.8


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine whose decodes wait for prefills."""
    for seen in s.engines:
        found = _steps(seen) or _throughput(seen, 1 / s.config.slo_for(seen.facts.get("model", "")).tpot_p95_s)
        if found is not None:
            yield found


def _throughput(seen: Sight, enough_each: float) -> Clue | None:
    looks = moments(seen)
    calm = [m.each for m in looks if m.each > 0 and known(m.prompt) <= 0]
    starved = [m for m in looks if _starved(m, max(calm, default=math.nan), enough_each)]
    lines = seen.source("generated_tokens_per_second") == "log"
    if not starved or (not lines and starved[-1].at - starved[0].at < LASTS_S):
        return None  # a line speaks for its whole interval, a look for the moment since the last
    worst = min(starved, key=lambda m: m.each)
    usual = max(calm, default=math.nan)
    before_after = not math.isnan(usual)
    told_by = len({(m.prompt, m.generated, m.running) for m in starved}) if lines else len(starved)
    if told_by < 2 and not before_after:
        return None  # one line, and nothing to hold it against: requests that have just come get no token yet
    sure = (0.55 if before_after else 0.4) + (0.1 if told_by > 1 else 0.0)
    lasts = starved[-1].at == looks[-1].at
    room = "nobody waits that is shown" if math.isnan(worst.kv) else "nobody waits and the cache has room"
    was = f", {usual:.3g}/s without a prefill beside it" if before_after else ""
    return Clue(
        "prefill_decode_interference",
        seen.subject,
        sure,
        f"{worst.prompt:.0f} prompt tokens/s are computed and each of {worst.running:.0f} running requests gets "
        f"{worst.each:.2g} "
        f"tokens/s{was}; {room}: prefill chunks stretch every step.",
        starved[0].at,
        "chunked_prefill",
        "ticket",
        "speed",
        evidence=(
            told(
                seen,
                "output tokens/s for each that runs",
                worst.each,
                usual if before_after else SLOW_EACH,
                "was" if before_after else "<",
            ),
            told(seen, "prompt_tokens_per_second", worst.prompt),
            told(seen, "req_waiting", worst.waiting),
            told(seen, "kv_usage_ratio", worst.kv, ROOM, "<"),
            told(seen, "looks with it", float(told_by)),
        ),
        ruled_out=(
            not_this("engine_hang", f"prompts are computed: {worst.prompt:.0f} tokens/s"),
            not_this("overload", f"{known(worst.waiting):.0f} wait"),
            *(() if math.isnan(worst.kv) else (not_this("preemption_storm", "the cache has room"),)),
        ),
        instead=instead(*(() if before_after else (("host_io_contention", 0.3), ("gpu_throttling", 0.25)))),
        ended_at=None if lasts else starved[-1].at,
        look_next="chunk size ÷ prefill speed (that is the step), and swapping or page faults on the host",
    )


def _starved(m: Moment, usual: float, enough_each: float) -> bool:
    """Slower than the objective for a token, and a quarter of what is usual without prefill (or slow for anybody)."""
    if not (m.prompt >= FAST_PROMPT and m.running >= 2 and known(m.kv) < ROOM and known(m.waiting) <= 0.5 * m.running):
        return False
    return m.each < min(enough_each, FALL * usual if not math.isnan(usual) else SLOW_EACH)


def _steps(seen: Sight) -> Clue | None:
    """Steps whose content is told: seconds, prompt tokens, output tokens."""
    step = seen.notices.get("step")
    if step is None:
        return None
    longest, chunk = step.greatest("seconds"), step.greatest("context_tokens")
    decoding, shortest = (
        step.greatest("generation_tokens"),
        step.numbers["seconds"].least if "seconds" in step.numbers else math.nan,
    )
    if not (longest >= SLOW_STEP_S and chunk >= 512 and decoding >= 1 and longest >= 5 * shortest):
        return None
    return Clue(
        "prefill_decode_interference",
        seen.subject,
        0.6,
        f"A step with a prefill chunk of {chunk:.0f} tokens takes {longest:.2g} s, one without {shortest:.2g} "
        f"s; each yields one token "
        "for every request in decode.",
        step.first_at,
        "chunked_prefill",
        "ticket",
        "speed",
        evidence=(
            told(seen, "longest step (seconds)", longest, SLOW_STEP_S, ">="),
            told(seen, "prefill tokens in a step", chunk),
            told(seen, "shortest step (seconds)", shortest),
        ),
        ruled_out=(not_this("engine_hang", "steps end"),),
        look_next="inter-token latency at these steps, and the chunk limit",
    )
