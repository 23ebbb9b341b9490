"""The queue of one engine as short evidence shows it: how long it stood, who was admitted meanwhile, what was full.

Seven mechanisms show the same picture (free cache and a queue); what separates them is asked here once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .moments import Moment, known
from .track import Sight

FULL, ROOM = 0.9, 0.85
"""KV in use from which on admission may fail for want of blocks, and up to which a usual request finds room."""
STANDS_S = 15.0
FEW, SHARE = 8.0, 0.25
FEWEST, HALF = 2.0, 0.5
"""At a single look a queue counts from eight requests and a quarter of the batch on, or from half of a small batch on: fewer
may have just arrived."""
TRICKLE = 0.02
"""Prompt tokens below a fiftieth of the output tokens are one short request, not a flow."""
LIMITS = frozenset({4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 160, 192, 200, 256, 320, 384, 512, 768, 1024, 2048, 4096})
"""Batch limits that people and defaults choose."""


class Queue(msgspec.Struct, frozen=True):
    """A queue over `looks` looks. `first` and `last` bound it; levels are of the last look, `flowing` and `admitting` None
    where not known. `limit`: the batch limit where it is told; `at_limit`: running stands at it, or at a likely one.
    `swings`: the batch fell to less than half and rose again while requests waited.
    """

    first: Moment
    last: Moment
    looks: int
    lasts: bool
    waiting: float
    running: float
    kv: float
    kv_least: float
    deferred: float
    grows: float
    flowing: bool | None
    admitting: bool | None
    limit: float
    at_limit: bool
    swings: bool = False

    @property
    def span_s(self) -> float:
        """From its first look to its last."""
        return self.last.at - self.first.at

    @property
    def full(self) -> bool:
        """The KV pool is full."""
        return self.kv >= FULL

    @property
    def room(self) -> bool:
        """The KV pool has room."""
        return self.kv < ROOM

    @property
    def held_by_capacity(self) -> bool:
        """Not all of it waits for an adapter, a grammar or remote KV, as far as that is told."""
        return math.isnan(self.deferred) or self.deferred < 0.5 * self.waiting


def queue_of(sight: Sight, seen: Sequence[Moment]) -> Queue | None:
    """The longest queue that is worth a word; None where there is none."""
    runs: list[list[Moment]] = [[]]
    for moment in seen:
        if moment.waiting >= 1:
            runs[-1].append(moment)
        elif not math.isnan(moment.waiting) and runs[-1]:
            runs.append([])
    runs = [run for run in runs if run and _worth(run)]
    if not runs:
        return None
    run = max(runs, key=lambda r: (r[-1].at == seen[-1].at, len(r)))
    last = run[-1]
    limit = sight.fact("max_num_seqs", "max_running_requests")
    return Queue(
        run[0],
        last,
        len(run),
        last.at == seen[-1].at,
        last.waiting,
        last.running,
        last.kv,
        min((m.kv for m in run if not math.isnan(m.kv)), default=math.nan),
        last.deferred,
        last.waiting - run[0].waiting,
        _flows(run),
        _admits(run),
        limit,
        _at_limit(run, limit),
        _swings(run),
    )


def _worth(run: list[Moment]) -> bool:
    if len(run) >= 2 and run[-1].at - run[0].at >= STANDS_S:
        return True
    last = run[-1]
    running = known(last.running)
    return running < 1 or last.waiting >= max(FEW, SHARE * running) or last.waiting >= max(FEWEST, HALF * running)


def _flows(run: list[Moment]) -> bool | None:
    """Whether anything moved in the second half of the run: tokens, steps or completions."""
    told = [m.moves for m in run[len(run) // 2 :] if m.moves is not None]
    return any(told) if told else None


def _any(run: list[Moment], rate: str) -> bool | None:
    """Whether this rate was above zero in the second half of the run."""
    told = [v for m in run[len(run) // 2 :] if not math.isnan(v := getattr(m, rate))]
    return any(v > 0 for v in told) if told else None


def _admits(run: list[Moment]) -> bool | None:
    """Whether somebody was let in: prompts were computed, or somebody finished while the batch stayed as large."""
    told = [m.prompt > TRICKLE * known(m.generated) for m in run[len(run) // 2 :] if not math.isnan(m.prompt)]
    if told:
        return any(told)
    done = _any(run, "finished")
    return None if done is None else done and run[-1].running >= run[0].running - 1


def _swings(run: list[Moment]) -> bool:
    """Down to less than half of what ran before, and up again: a batch that drains is not short of room alone."""
    running = [m.running for m in run if not math.isnan(m.running)]
    return any(
        max(running[:i], default=0.0) >= 2 * low + 2 and max(running[i:], default=0.0) >= 2 * low + 2
        for i, low in enumerate(running)
    )


def _at_limit(run: list[Moment], limit: float) -> bool:
    running = [m.running for m in run if not math.isnan(m.running)]
    if not running or running[-1] < 1:
        return False
    if not math.isnan(limit):
        return running[-1] >= 0.95 * limit
    return running[-1] in LIMITS and (len(running) < 2 or max(running) - min(running) <= 0.02 * running[-1])
