"""Plays a fleet of prefill and decode engines in virtual time: many engines under one clock, and the router before them.

Each engine steps at its own pace. Whatever happens next, a step's end, an arrival, a transfer's end or a poll, the clock
moves there. New requests go to the prefill engine with the fewest prompt tokens outstanding, computed ones to the decode
engine with the fewest requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from ...clock import VirtualClock
from ...engine.engine import Engine, RequestRejected
from ...request import Request
from ..play import Arrivals
from .instance import Instance
from .prefill_side import PrefillScheduler


@dataclass(slots=True)
class Parts:
    """A request on its way: what the client asked, and the two requests that the engines see."""

    asked: Request
    prefill: Request
    prefill_at: Instance
    decode: Request | None = None
    kept: bool = False  # the prefill engine holds its KV


class Fleet:
    """Owns the loop. `left` hears of each client's request when it has ended, with the stages of both its parts."""

    def __init__(
        self,
        clock: VirtualClock,
        prefill: Sequence[Instance],
        decode: Sequence[Instance],
        arrivals: Arrivals,
        left: Callable[[Request], None],
        poll_s: float = 1.0,
    ) -> None:
        self._clock = clock
        self._prefill = prefill
        self._decode = decode
        self._instances = [*prefill, *decode]
        self._arrivals = arrivals
        self._left = left
        self._poll_s = poll_s
        self._start = clock.now()
        self._polls = 1
        self._parts: dict[str, Parts] = {}
        self._transfers: list[tuple[float, int, Parts]] = []  # a heap by end
        self._order = count()
        for instance in self._instances:
            instance.ended, instance.fetch = self._ended, self._fetch

    def run(self, until: float) -> None:
        """Until the clock time `until`."""
        while self._clock.now() < until:
            self._deliver()
            for instance in self._instances:
                instance.begin()
            next_poll = self._start + self._polls * self._poll_s
            self._clock.advance_to(max(min(self._next_event(), next_poll, until), self._clock.now()))
            self._happen()
            if next_poll <= self._clock.now():
                for instance in self._instances:
                    instance.poll(next_poll)
                self._polls += 1
        for instance in self._instances:
            instance.log.flush()

    def _fetch(self, instance: Instance, request: Request, size_bytes: float) -> float:
        """A decode engine has blocks for a prompt: send its KV. Returns the clock time of its arrival."""
        arrives = instance.link.send(size_bytes, self._clock.now())
        heappush(self._transfers, (arrives, next(self._order), self._parts[request.id]))
        return arrives

    def _next_event(self) -> float:
        ends = min(instance.next_event() for instance in self._instances)
        fetched = self._transfers[0][0] if self._transfers else ends
        return min(ends, fetched, self._arrivals.peek())

    def _deliver(self) -> None:
        now = self._clock.now()
        while self._arrivals.peek() <= now:
            asked = self._arrivals.take()
            target = min(self._prefill, key=lambda instance: instance.outstanding_tokens)
            first = _part(asked, max_tokens=1, stop_after=1, arrived_at=asked.arrived_at)
            self._parts[asked.id] = Parts(asked, first, target)
            target.outstanding_tokens += asked.prompt_tokens
            _hand_in(target.engine, first)

    def _happen(self) -> None:
        now = self._clock.now()
        while self._transfers and self._transfers[0][0] <= now:
            self._release(heappop(self._transfers)[2])
        for instance in self._instances:
            if instance.ends_at <= now:
                instance.end()
                if instance in self._prefill:
                    self._hand_over(instance)

    def _hand_over(self, instance: Instance) -> None:
        """Prompts that have just been computed go on to a decode engine."""
        scheduler = instance.engine.scheduler
        assert isinstance(scheduler, PrefillScheduler)
        for computed in scheduler.take_computed():
            parts = self._parts[computed.id]
            asked, parts.kept = parts.asked, True
            target = min(self._decode, key=lambda instance: instance.outstanding_tokens)
            parts.decode = _part(asked, asked.max_tokens, asked.stop_after, arrived_at=self._clock.now())
            target.outstanding_tokens += asked.prompt_tokens
            _hand_in(target.engine, parts.decode)

    def _ended(self, instance: Instance, part: Request) -> None:
        """One of the two parts has left its engine."""
        instance.outstanding_tokens -= part.prompt_tokens
        parts = self._parts[part.id]
        if part is parts.prefill and part.finish_reason in ("stop", "length"):
            return  # `_hand_over` follows
        del self._parts[part.id]
        if parts.kept and not any(parts is other for _, _, other in self._transfers):
            self._release(parts)
        asked = parts.asked
        asked.stages = [*parts.prefill.stages, *(parts.decode.stages if parts.decode is not None else ())]
        asked.finish_reason, asked.finished_at = part.finish_reason, part.finished_at
        if parts.decode is not None:
            asked.output_tokens, asked.preemptions = part.output_tokens, part.preemptions
            asked.first_token_at, asked.last_token_at = part.first_token_at, part.last_token_at
        self._left(asked)

    def _release(self, parts: Parts) -> None:
        """The prefill engine may use the blocks again."""
        scheduler = parts.prefill_at.engine.scheduler
        assert isinstance(scheduler, PrefillScheduler)
        if parts.kept:
            parts.kept = False
            scheduler.fetched(parts.prefill)


def _part(asked: Request, max_tokens: int, stop_after: int, arrived_at: float) -> Request:
    return Request(
        id=asked.id,
        prompt_tokens=asked.prompt_tokens,
        max_tokens=max_tokens,
        arrived_at=arrived_at,
        stop_after=stop_after,
        prefix_key=asked.prefix_key,
        prefix_tokens=asked.prefix_tokens,
        tenant=asked.tenant,
        priority=asked.priority,
    )


def _hand_in(engine: Engine, part: Request) -> None:
    with suppress(RequestRejected):  # counted by the engine, and told to `_ended`
        engine.add(part)
