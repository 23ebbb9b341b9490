"""Demand: the requests of a scenario's streams, in order of arrival, reproducible from a seed.

Each stream draws from its own generators, seeded by (seed, crc32 of its name): changing one stream does not move the
others, and changing lengths does not move arrival times. Open streams come whatever the engine does; a closed stream's
client sends its next request when the last one has finished. Times inside a stream are seconds from the start.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from ..request import Request
from .impatience import Impatience
from .streams import Stream

_CHUNK = 512
_BACK_OFF_S = 1.0


def _generators(seed: int, name: str) -> list[np.random.Generator]:
    """Independent generators of one stream: arrival times, prompt lengths, output lengths, thinning."""
    root = np.random.SeedSequence([seed, zlib.crc32(name.encode())])
    return [np.random.default_rng(child) for child in root.spawn(4)]


def arrival_times(stream: Stream, rate_per_s: float, rng: np.random.Generator) -> Iterator[float]:
    """Arrival times of an open stream between its from_s and until_s, ascending."""
    replay = stream.replay
    for at in _chunks(stream, rate_per_s, rng) if replay is None else [replay.times(stream.from_s)]:
        for t in at.tolist():
            if t >= stream.until_s:
                return
            yield t


def _chunks(stream: Stream, rate_per_s: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Ascending arrival times without end."""
    if stream.arrivals == "uniform":
        gap = 1 / rate_per_s
        first = stream.from_s + rng.random() * gap
        for n in range(0, 2**60, _CHUNK):
            yield first + gap * np.arange(n, n + _CHUNK)
    peak_per_s = rate_per_s * (1 + stream.swing_ratio)
    last = stream.from_s
    while True:
        at = last + np.cumsum(_gaps(stream, peak_per_s, rng))
        last = float(at[-1])
        if stream.arrivals == "diurnal":
            level = 1 + stream.swing_ratio * np.sin(2 * math.pi * at / stream.period_s)
            at = at[rng.random(_CHUNK) < level / (1 + stream.swing_ratio)]
        yield at


def _gaps(stream: Stream, rate_per_s: float, rng: np.random.Generator) -> np.ndarray:
    if stream.arrivals == "gamma":
        shape = 1 / stream.cv**2
        return rng.gamma(shape, 1 / (rate_per_s * shape), _CHUNK)
    return rng.exponential(1 / rate_per_s, _CHUNK)


class _Source:
    """One stream at work: when it sends next, and what."""

    def __init__(self, stream: Stream, rate_per_s: float, pool_tokens: int, seed: int) -> None:
        self.stream = stream
        self._pool_tokens = pool_tokens
        self._times, self._prompts, self._outputs, self._thinning = _generators(seed, stream.name)
        self._lengths: Iterator[tuple[int, int]] = self._draw_lengths()
        self._open = stream.arrivals != "closed"
        self._coming = self._kept(arrival_times(stream, rate_per_s, self._times) if self._open else ())
        self._count = 0
        self.due: list[float] = []  # a heap; open streams keep one entry
        if self._open:
            self._refill()
        else:
            clients = max(round(stream.concurrency * stream.kept), 1)
            spread_s = max(stream.think_s, 1.0)  # clients do not all knock at once
            self.due = (stream.from_s + self._times.random(clients) * spread_s).tolist()
            heapify(self.due)

    def take(self, start: float) -> Request:
        """The request that is due first; `start` is the clock time of the scenario's start."""
        at = heappop(self.due)
        prompt, output = next(self._lengths)
        if self._open:  # after the lengths are drawn: refilling skips those of arrivals that are thinned out
            self._refill()
        stream = self.stream
        self._count += 1
        shared = min(stream.shared_prefix_tokens, prompt)
        max_tokens = stream.max_tokens or output
        return Request(
            id=f"{stream.name}-{self._count}",
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            arrived_at=start + at,
            stop_after=min(output, max_tokens),
            prefix_key=zlib.crc32(stream.name.encode()) if shared else 0,
            prefix_tokens=shared,
            tenant=stream.tenant,
            priority=stream.priority,
            deadline_at=start + at + stream.deadline_s,
            draft_acceptance=stream.draft_acceptance,
        )

    def finished(self, at: float, served: bool) -> None:
        """A closed stream's client got its answer at `at` and thinks about the next; a refusal makes it back off."""
        pause_s = self._times.exponential(self.stream.think_s) if self.stream.think_s else 0.0
        if not served:
            pause_s += _BACK_OFF_S
        if not self._open and at + pause_s < self.stream.until_s:
            heappush(self.due, at + pause_s)

    def _refill(self) -> None:
        at = next(self._coming, None)
        if at is not None:
            self.due.append(at)

    def _kept(self, times: Iterable[float]) -> Iterator[float]:
        """Thin the stream out without moving what is kept; lengths of what is dropped are dropped with it."""
        if self.stream.kept >= 1:
            yield from times
            return
        for at in times:
            if self._thinning.random() < self.stream.kept:
                yield at
            else:
                next(self._lengths)

    def _draw_lengths(self) -> Iterator[tuple[int, int]]:
        at, replay = 0, self.stream.replay
        while True:
            prompts = self.stream.prompt.tokens(self._prompts.random(_CHUNK), self._pool_tokens)
            outputs = self.stream.output.tokens(self._outputs.random(_CHUNK), self._pool_tokens)
            if replay is not None:
                prompts, outputs = replay.lengths(at, prompts, outputs)
                at += _CHUNK
                if not len(prompts):
                    return
            yield from zip(prompts.tolist(), outputs.tolist(), strict=True)


class Demand:
    """All streams of a scenario: simulate.Arrivals. `rates_per_s` has one rate for each stream (0 for closed ones)."""

    def __init__(
        self, streams: Sequence[Stream], rates_per_s: Sequence[float], *, pool_tokens: int, seed: int, start: float
    ) -> None:
        self._start = start
        self._sources = [_Source(s, r, pool_tokens, seed) for s, r in zip(streams, rates_per_s, strict=True)]
        self._next: _Source | None = None
        self._next_at = math.inf
        self._look()
        self._closed: dict[Request, _Source] = {}
        self._impatience = Impatience()
        self.impatient = any(s.abort_after_s < math.inf or s.retry is not None for s in streams)  # clients give up
        self.reacts = self.impatient or any(stream.arrivals == "closed" for stream in streams)  # see simulate.Arrivals

    def peek(self) -> float:
        """Clock time of the next arrival, infinity if none is known."""
        return min(self._next_at, self._impatience.next_again()) if self.impatient else self._next_at

    def take(self) -> Request:
        """The request that `peek` spoke of. IndexError if there is none."""
        source = self._next
        if self.impatient and self._impatience.next_again() <= self.peek():
            return self._impatience.take_again()
        if source is None:
            raise IndexError("no request is due")
        request = source.take(self._start)
        self._look()
        if self.impatient:
            self._watch(request, source.stream, 1)
        if source.stream.arrivals == "closed":
            self._closed[request] = source
        return request

    def next_leave(self) -> float:
        """Clock time at which a client gives up next."""
        return self._impatience.next_leave()

    def leaving(self, now: float) -> list[str]:
        """Requests whose clients have gone by `now`."""
        return self._impatience.leaving(now)

    @property
    def retries(self) -> int:
        """Requests that were sent again."""
        return self._impatience.retries

    def _watch(self, request: Request, stream: Stream, attempt: int) -> None:
        def again(at: float) -> Request:
            name = request.id.partition("+")[0]
            repeated = Request(
                id=f"{name}+{attempt}",
                prompt_tokens=request.prompt_tokens,
                max_tokens=request.max_tokens,
                arrived_at=at,
                stop_after=request.stop_after,
                prefix_key=request.prefix_key,
                prefix_tokens=request.prefix_tokens,
                tenant=request.tenant,
                priority=request.priority,
                deadline_at=at + stream.deadline_s,
                draft_acceptance=stream.draft_acceptance,
            )
            self._watch(repeated, stream, attempt + 1)
            return repeated

        self._impatience.watch(request, stream.abort_after_s, stream.retry, attempt, again)

    def finished(self, request: Request) -> None:
        """A request has left the engine: closed streams go on."""
        if self.impatient:
            self._impatience.finished(request, max(request.finished_at, request.arrived_at))
        source = self._closed.pop(request, None)
        if source is not None:
            served = request.finish_reason in ("stop", "length")
            source.finished(max(request.finished_at, request.arrived_at) - self._start, served)
            self._look()

    def _look(self) -> None:
        """Find the source that is due first."""
        due = [source for source in self._sources if source.due]
        self._next = min(due, key=lambda source: source.due[0]) if due else None
        self._next_at = math.inf if self._next is None else self._start + self._next.due[0]
