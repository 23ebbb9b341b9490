"""The looks at one engine as moments: levels carried forward, rates taken from gauges or from what counters grew.

A moment holds NaN for what is not known. An episode is a run of moments that share a property: how long, how often seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from .track import Sight, by_log

HELD_S = 120.0
"""A level that the next looks do not repeat is carried on for so long: SGLang tells some of them every 40 steps."""
AT_FINISH = frozenset({"sglang", "trtllm", "trt-llm", "tensorrt-llm", "llamacpp", "llama.cpp", "tgi"})
"""Engines whose token counters move when a request ends: standing still for a while proves nothing there."""


class Moment(msgspec.Struct, frozen=True):
    """One look. Rates per second since the look before; `finished`, `arrived`, `steps`, `preempted` are rates, too."""

    at: float
    running: float
    waiting: float
    deferred: float
    kv: float
    hit: float
    generated: float
    prompt: float
    finished: float
    arrived: float
    steps: float
    preempted: float

    @property
    def inside(self) -> float:
        """Requests in the engine."""
        return known(self.running) + known(self.waiting)

    @property
    def each(self) -> float:
        """Tokens per second of one running request; NaN where not known."""
        return self.generated / self.running if self.running > 0 else math.nan

    @property
    def moves(self) -> bool | None:
        """Whether anything moved; None where nothing that must move is shown."""
        told = [v for v in (self.generated, self.prompt, self.steps, self.finished) if not math.isnan(v)]
        return any(v > 0 for v in told) if told else None


class Episode(msgspec.Struct, frozen=True):
    """A run of moments with a property: the first and the last of them, how many, and whether it lasts to the end."""

    first: Moment
    last: Moment
    count: int
    lasts: bool

    @property
    def span_s(self) -> float:
        """From its first look to its last."""
        return self.last.at - self.first.at


class Progress(msgspec.Struct, frozen=True):
    """Does anything move at the end? `still_s`: for how long not, over `looks` looks; `trusted`: counters that must move."""

    says: str  # moves, still or unknown
    still_s: float = 0.0
    looks: int = 0
    trusted: bool = True
    moved_before: bool = False


def moments(sight: Sight) -> list[Moment]:
    """The looks of an engine, oldest first; computed once for all that ask."""
    if sight.moments is None:
        sight.moments = _moments(sight)
    return sight.moments  # type: ignore[return-value]


def _moments(sight: Sight) -> list[Moment]:
    held: dict[str, tuple[float, float]] = {}
    before: dict[str, tuple[float, float]] = {}
    paged = {name for name, told in sight.tracks.items() if any(source != "log" for source in told)}
    out: list[Moment] = []
    for at, look in sight.looks:
        for name, value in look.items():
            held[name] = (at, value)

        def level(name: str, at: float = at) -> float:
            when, value = held.get(name, (-math.inf, math.nan))
            return value if at - when <= HELD_S else math.nan

        def rate(counter: str, gauge: str = "", at: float = at, look: dict[str, float] = look) -> float:
            if counter not in paged:
                if gauge and gauge in look:
                    return look[gauge]
                counter = by_log(counter)
            value = look.get(counter, math.nan)
            when, old = before.get(counter, (math.nan, math.nan))
            if not math.isnan(value):
                before[counter] = (at, value)
            return (value - old) / (at - when) if value >= old and at > when else math.nan

        out.append(
            Moment(
                at,
                level("req_running"),
                level("req_waiting"),
                level("req_waiting_deferred"),
                level("kv_usage_ratio"),
                level("prefix_hit_ratio"),
                rate("generated_tokens_total", "generated_tokens_per_second"),
                rate("prompt_tokens_total", "prompt_tokens_per_second"),
                rate("req_finished_total"),
                rate("req_arrived_total"),
                rate("steps_total"),
                rate("req_preempted_total"),
            )
        )
    return out


def last_episode(seen: Sequence[Moment], holds: Callable[[Moment], bool]) -> Episode | None:
    """The last run of moments in which something holds; None where it never does."""
    end = next((i for i in range(len(seen) - 1, -1, -1) if holds(seen[i])), -1)
    if end < 0:
        return None
    begin = end
    while begin > 0 and holds(seen[begin - 1]):
        begin -= 1
    return Episode(seen[begin], seen[end], end - begin + 1, end == len(seen) - 1)


def progress(sight: Sight, seen: Sequence[Moment], now: float) -> Progress:
    """Whether the engine moves at the end of what was seen. `now`: the time of the last look at anything."""
    told = [m for m in seen if m.moves is not None]
    if not told:
        return Progress("unknown")
    if told[-1].moves:
        return Progress("moves")
    episode = last_episode(told, lambda m: m.moves is False)
    assert episode is not None
    trusted = "steps_total" in sight.tracks or (_is_log(sight) and not _by_slots(sight)) or _counts_at_once(sight)
    since = max((m.at for m in seen if m.at < episode.first.at), default=episode.first.at)
    # A stats line speaks for the time since the line before. vLLM's says nothing more once it has said 0: silence counts.
    until = now if _is_log(sight) and sight.engine_kind == "vllm" else episode.last.at
    moved = any(m.moves for m in told)
    return Progress("still", until - since, episode.count, trusted, moved)


def _counts_at_once(sight: Sight) -> bool:
    """Whether its tokens are counted when they come: its dialect says which counters are not, else its kind."""
    if "at_finish" in sight.facts:
        return "generated_tokens_total" not in sight.facts["at_finish"].split(",")
    return sight.engine_kind.lower() not in AT_FINISH


def _by_slots(sight: Sight) -> bool:
    """Whether its log tells of requests as they begin and end, and of nothing between."""
    return sight.engine_kind in ("llamacpp", "ollama", "tgi")


def _is_log(sight: Sight) -> bool:
    return sight.source("generated_tokens_per_second") == "log"


def known(value: float, otherwise: float = 0.0) -> float:
    """The value, or what to assume where it is not known."""
    return otherwise if math.isnan(value) else value
