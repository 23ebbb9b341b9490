"""One engine of a fleet at work: its step in progress, its link, and who watches it. Clock seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...clock import VirtualClock
from ...devices.profiles import Device
from ...engine.counters import Counters
from ...engine.engine import Engine
from ...engine.scheduler import Scheduler
from ...engine.step_extras import step_fields
from ...faults import FOREVER
from ...kv.pool import KvPool
from ...request import Request, Stage
from ...runners.modelled.runner import NO_WORK, ModelRunner
from ...settings.engine import EngineSettings
from ...step import Telemetry
from ..play import EMPTY_STEP_S, Observer, StepLog
from .decode_side import DecodeScheduler
from .link import TransferLink
from .prefill_side import PrefillScheduler


class Instance:
    """An engine with a modelled device in virtual time. It stands before its engine's telemetry, to hear what ends.

    `fetch` and `ended` are the fleet's: send a request's KV (bytes) here, and a request has left.
    """

    fetch: Callable[[Instance, Request, float], float]
    ended: Callable[[Instance, Request], None]

    def __init__(
        self,
        role: str,
        settings: EngineSettings,
        blocks: int,
        device: Device,
        clock: VirtualClock,
        telemetry: Telemetry,
        observer: Observer,
        link: TransferLink,
    ) -> None:
        self.link = link
        self.outstanding_tokens = 0  # prompt tokens of requests that were sent here and have not left
        self.ends_at = FOREVER  # of the step in progress
        self._telemetry = telemetry
        self._observer = observer
        self._tokens: list[int] = []
        self._work: tuple[float, ...] = NO_WORK
        runner = ModelRunner(settings, device)
        new_scheduler = PrefillScheduler if role == "prefill" else self._decode_scheduler
        self.engine = Engine(settings, blocks, runner, clock, self, new_scheduler)
        self.log = StepLog(runner, observer, step_fields(settings))

    def _decode_scheduler(self, settings: EngineSettings, pool: KvPool, counters: Counters) -> DecodeScheduler:
        def fetch(request: Request, tokens: int, now: float) -> float:
            return self.fetch(self, request, tokens * settings.kv_bytes_per_token)

        return DecodeScheduler(settings, pool, counters, fetch, self.stage_changed)

    # -- its engine's telemetry -------------------------------------------------------------------------------------

    def step_begun(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def step_ended(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """See step.Telemetry."""
        self._telemetry.stage_changed(request, stage, now)

    def finished(self, request: Request) -> None:
        """See step.Telemetry."""
        self._telemetry.finished(request)
        self.ended(self, request)

    # -- its steps --------------------------------------------------------------------------------------------------

    def next_event(self) -> float:
        """When its step ends, or when it can begin one without anything from outside."""
        if self.ends_at < FOREVER:
            return self.ends_at
        scheduler = self.engine.scheduler
        return scheduler.arrives_at() if isinstance(scheduler, DecodeScheduler) else FOREVER

    def begin(self) -> None:
        """Begin a step, if none is in progress and there is anything to do."""
        now = self.engine.clock.now()
        if self.ends_at < FOREVER or (not self.engine.has_mail() and _only_waits(self.engine.scheduler, now)):
            return
        open_step = self.engine.begin()
        if open_step is None:
            return
        plan = open_step.plan
        if plan.decode or plan.prefill:
            self._tokens, seconds = self.engine.runner.run(plan)
            self._work = self.engine.runner.work
        else:
            self._tokens, self._work = [], NO_WORK
            seconds = EMPTY_STEP_S if self.engine.scheduler.waiting else 0.0
        self.ends_at = now + seconds

    def end(self) -> None:
        """The step in progress ends now."""
        open_step = self.engine.open
        assert open_step is not None
        self.ends_at = FOREVER
        self.engine.complete(self._tokens)
        self.log.add_step(open_step.record, self._work)

    def poll(self, now: float) -> None:
        """Show what there is to see."""
        self.log.flush()
        self.link.settle(now)
        open_step = self.engine.open
        if open_step is not None:
            expected_s = self.ends_at - open_step.record[1]
            readings = self.engine.runner.readings(np.array([self._work]), np.array([expected_s]))
            open_step.readings = {name: float(values[0]) for name, values in readings.items()}
        self._observer.poll(now, open_step.record if open_step is not None else None, self.engine)


def _only_waits(scheduler: Scheduler, now: float) -> bool:
    return isinstance(scheduler, DecodeScheduler) and not scheduler.waiting and scheduler.only_waits(now)
