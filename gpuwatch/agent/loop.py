"""The agent's loop: poll what is due, record, judge once a second, tell. It never dies: what fails is counted and logged
once a change of state, and the next second goes on.

Polls run beside the loop, so that a slow engine delays nothing but its own data. `tick(now)` is all that happens at one
moment; `run` calls it on one timer. Whatever is slow (packing, snapshots, deliveries) happens off the tick.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ..model import Batch, Event, Info, Tick, Transition
from ..recording.recorder import Recorder
from ..sinks.change_log import ChangeLog
from ..sinks.delivery import Delivery
from ..sinks.store import Store

if TYPE_CHECKING:
    from ..pipeline import Pipeline
    from ..sources.poll import Poller

log = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How long a tick waits for the polls that it began: most answer in milliseconds and need no second wake-up."""
COALESCE_S = 0.04
MOST_BATCHES = 1000
TIDY_EVERY_S = 15.0
REOPEN_EVERY_S = 60.0
"""How often a store that could not be opened is tried again."""
RESTART_AFTER = 30
WARM_SLICE_S = 0.05


class Pump(Protocol):
    """A queue towards the world that is emptied beside the tick."""

    def due(self, now: float) -> bool: ...  # noqa: D102
    async def pump(self, now: float) -> None: ...  # noqa: D102
    async def aclose(self) -> None: ...  # noqa: D102


class Watch:
    """Polls, records, judges and tells. `counts`: ticks, failed_ticks, restarted_pipelines, dropped_batches."""

    def __init__(
        self,
        pollers: Sequence[Poller],
        recorder: Recorder,
        pipeline: Pipeline,
        store: Store,
        deliveries: Sequence[Delivery],
        *,
        clock_event: Callable[[], Event | None] = lambda: None,
        saw: Callable[[Info], None] | None = None,
        pumps: Sequence[Pump] = (),
        hear: Sequence[Callable[[Transition], None]] = (),
        repost_s: float = 60.0,
    ) -> None:
        self.pollers = tuple(pollers)
        self.recorder = recorder
        self.pipeline = pipeline
        self.store = store
        self.deliveries = tuple(deliveries)
        self.pumps: tuple[Pump, ...] = (*deliveries, *pumps)
        self.counts: Counter[str] = Counter()
        self.last: Tick | None = None
        self.tick_seconds = math.nan
        self.warm = False
        self._clock_event = clock_event
        self._saw = saw
        self._hear = tuple(hear)
        self._repost_s = repost_s
        self._repost_due = 0.0
        self._tidy_due = 0.0
        self._reopen_due = 0.0
        self._stepped = -math.inf
        self._failed_in_a_row = 0
        self._inbox: list[Batch] = []
        self._polls: dict[Poller, asyncio.Task[Batch]] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._judging = ChangeLog(log, "judging")
        self._recording = ChangeLog(log, "recording")
        self._storing = ChangeLog(log, "storing incidents")

    def put(self, batch: Batch) -> None:
        """Add a batch to the next second. A mailbox that was empty is not worth a record."""
        brought = batch.frames or batch.histograms or batch.spans or batch.events or batch.info or batch.error
        if batch.role in ("spans", "changes", "log", "ownership", "about") and not brought:
            return
        self._inbox.append(batch)
        if self._saw is not None and batch.role in ("engine", "gpu"):  # a ring says less of the same: no change
            for info in batch.info:
                self._saw(info)
        surplus = len(self._inbox) - MOST_BATCHES
        if surplus > 0:
            del self._inbox[:surplus]
            self.counts["dropped_batches"] += surplus

    async def warm_up(self, now: float) -> None:
        """Bring the pipeline back to where the last run left it. Nothing that was told before is told again."""
        told = 0
        for cold in (False, True):
            try:
                told += await self._replay(cold)
                break
            except Exception:
                self.counts["failed_warm_ups"] += 1
                log.exception("the journal could not be replayed%s", "; beginning without it" if cold else "")
                self.pipeline = type(self.pipeline)(self.pipeline.config)
        self._stepped = self.pipeline.now
        told += len(self.store.add(self._orphans(now)))
        for delivery in self.deliveries:
            for transition in self.store.owed(delivery.sink.name, now, delivery.sink.newest_only):
                delivery.offer(transition)
        log.info("warm: %d incidents open, %d transitions new since the last run", len(self.pipeline.open()), told)
        self.warm = True

    async def _replay(self, cold: bool) -> int:
        """Step through the record, leaving the loop to others now and then; how many transitions were news."""
        began = time.perf_counter()
        told = 0
        for pipeline, call in self.recorder.warm(cold):
            self.pipeline = pipeline
            if call is not None:
                told += len(self.store.add(pipeline.step(*call).transitions))
            if time.perf_counter() - began > WARM_SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return told

    async def tick(self, now: float, patience_s: float = PATIENCE_S) -> Tick | None:
        """All that happens at `now` (unix seconds). Returns what was judged, None between the seconds."""
        self._begin_polls(now)
        await self._collect_polls(patience_s)
        judged = None
        second = float(math.floor(now))
        if self.warm and second > self._stepped:
            judged = self._step(second)
        self._begin_work(now)
        return judged

    async def run(self, now: Callable[[], float], stop: asyncio.Event) -> None:
        """Tick until `stop` is set."""
        while not stop.is_set():
            await self.tick(now())
            delay = max(0.01, self._next_at(now()) - now())
            try:
                await asyncio.wait_for(stop.wait(), delay)
            except TimeoutError:
                continue

    async def settle(self) -> None:
        """Wait for polls and work under way, as at the end of a test or of the agent."""
        while self._polls or self._work:
            await asyncio.wait([*self._polls.values(), *self._work])
            await self._collect_polls(0.0)

    async def close(self, now: float, grace_s: float = 0.5) -> None:
        """Stop polling, give deliveries a moment, close everything in order. What is recorded is on disk already."""
        for poll in self._polls.values():
            poll.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        self._polls.clear()
        if self._work:
            await asyncio.wait(self._work, timeout=grace_s)
        last = [asyncio.create_task(pump.pump(now)) for pump in self.pumps if pump.due(now)]
        if last:
            _, late = await asyncio.wait(last, timeout=grace_s)
            for task in late:
                task.cancel()
        closing = [poller.aclose() for poller in self.pollers] + [pump.aclose() for pump in self.pumps]
        for problem in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(problem, BaseException):
                log.warning("while closing: %s: %s", type(problem).__name__, problem)
        await asyncio.to_thread(self.recorder.close, now)
        self.store.close()

    # --- polling -------------------------------------------------------------------------------------------------

    def _begin_polls(self, now: float) -> None:
        for poller in self.pollers:
            if poller not in self._polls and poller.due_at <= now + COALESCE_S:
                self._polls[poller] = asyncio.create_task(poller.poll(now))

    async def _collect_polls(self, patience_s: float) -> None:
        if self._polls:
            await asyncio.wait(self._polls.values(), timeout=patience_s)
        for poller, task in list(self._polls.items()):
            if task.done():
                del self._polls[poller]
                if not task.cancelled():
                    self.put(task.result())

    def _next_at(self, now: float) -> float:
        """When there is something to do: a second to judge, or a source that is due and not being asked."""
        due = (poller.due_at for poller in self.pollers if poller not in self._polls)
        return min(math.floor(now) + 1.0, *due, math.inf)

    # --- judging -------------------------------------------------------------------------------------------------

    def _step(self, now: float) -> Tick | None:
        began = time.perf_counter()
        event = self._clock_event()
        if event is not None:
            self.put(Batch("clock", "changes", event.subject, now, events=(event,)))
        batches, self._inbox = self._inbox, []
        self._stepped = now
        try:
            call = self.recorder.record(now, batches)
            self._recording.say(self.recorder.journal.last_error)
            tick = self.pipeline.step(*call)
            self.recorder.noticed(now, self.pipeline, tick.transitions)
        except Exception as error:
            self._failed(error)
            return None
        self._failed_in_a_row = 0
        self._judging.say("")
        self.last = tick
        self._tell(now, tick)
        self.counts["ticks"] += 1
        self.tick_seconds = time.perf_counter() - began
        return tick

    def _failed(self, error: Exception) -> None:
        """A fault of our own: the second is lost for judging, not for the record."""
        self.counts["failed_ticks"] += 1
        self._failed_in_a_row += 1
        if not self._judging.problem:
            log.error("a second could not be judged", exc_info=error)
        self._judging.say(f"{type(error).__name__}: {error}")
        if self._failed_in_a_row >= RESTART_AFTER:
            self._failed_in_a_row = 0
            self.counts["restarted_pipelines"] += 1
            self.pipeline = type(self.pipeline)(self.pipeline.config)

    def _tell(self, now: float, tick: Tick) -> None:
        if self.store.is_off and now >= self._reopen_due:
            self._reopen_due = now + REOPEN_EVERY_S
            self.store.reopen()
        news = self.store.add(tick.transitions)
        self._storing.say(self.store.last_error)
        for transition in news:
            log.info(
                "incident %s %s: %s on %s, %s", transition.incident.id, transition.kind, transition.incident.rule,
                transition.incident.subject.get("engine"), transition.incident.severity,
            )  # fmt: skip
            for hear in self._hear:
                hear(transition)
        reminders: tuple[Transition, ...] = ()
        if now >= self._repost_due:
            self._repost_due = now + self._repost_s
            reminders = tuple(Transition("reminder", now, incident) for incident in tick.open)
        for delivery in self.deliveries:
            for transition in (*reminders, *news) if delivery.sink.newest_only else news:
                delivery.offer(transition)

    def _orphans(self, now: float) -> list[Transition]:
        """Incidents that the store holds open and the replayed pipeline does not know: nobody would ever end them."""
        known = {incident.id for incident in self.pipeline.open()}
        return [
            Transition("resolved", now, replace(incident, status="resolved", resolved_at=now))
            for incident in self.store.incidents(limit=self.store.keep, only_open=True)
            if incident.id not in known
        ]

    # --- beside the tick -----------------------------------------------------------------------------------------

    def _begin_work(self, now: float) -> None:
        for pump in self.pumps:
            if pump.due(now):
                self._begin(pump.pump(now))
        if self.warm and now >= self._tidy_due:
            self._tidy_due = now + TIDY_EVERY_S
            self._begin(asyncio.to_thread(self.recorder.tidy, now))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counts["failed_work"] += 1
            log.error("beside the tick", exc_info=error)
