"""All the faults of a run, as questions: how fast is the device, who may come in, when does something change.

`due` is when the next change of conditions comes; the player calls `act` then, between two steps. Where `step_by_step`
is true, steps cannot be computed in stretches, because something may hold up a single one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.counters import Counters
from ..engine.scheduler import Scheduler
from ..kv.pool import KvPool
from ..request import Request
from ..settings.engine import EngineSettings
from ..step import StepPlan
from .clients import LostAbort, LumpyProxy, StalledClient, lumps
from .deferred import AdapterLoad, AdapterSlots, Gate, GrammarCompile, GrammarThreads
from .device import ClockLimit, DeviceChanges, LowIdleClock, StepCreep
from .exporter import ExporterFrozen, FrozenPages
from .front_end import BlockedEventLoop, FrontEnd, SlowTokenizer
from .host import CpuQuota, HostMemoryLeak, IdleSpin, Quota
from .interval import FOREVER
from .memory import BlockLeak, LeakedBlocks, OffloadStall
from .outage import Outage
from .oversized import OversizedRequest
from .slowdown import Slowdown, Slowdowns
from .tenants import Neighbor

if TYPE_CHECKING:
    from ..engine.engine import Engine

NewScheduler = Callable[[EngineSettings, KvPool, Counters], Scheduler]
GROWTH_EVERY_S = 1.0  # how often the process' memory is looked at


class Faults:
    """The faults of one run of one engine."""

    def __init__(self, faults: Sequence[Any], before: Faults | None = None) -> None:
        """`before` is what acted until now, where a fault comes or goes while the engine runs."""

        def of(*kinds: type) -> list[Any]:
            return [fault for fault in faults if isinstance(fault, kinds)]

        self.all = tuple(faults)
        self._slowdowns = Slowdowns(of(Slowdown))
        self._outages: list[Outage] = sorted(of(Outage), key=lambda outage: outage.at)
        self._device = DeviceChanges(of(ClockLimit, LowIdleClock, StepCreep, Neighbor))
        self._quotas = [Quota(fault) for fault in of(CpuQuota)]
        known = {} if before is None else {leak.fault: leak for leak in before._leaks}
        self._leaks = [known.get(fault) or LeakedBlocks(fault) for fault in of(BlockLeak)]
        self._offloads: list[OffloadStall] = of(OffloadStall)
        self._let_in: set[OversizedRequest] = set() if before is None else before._let_in
        coming = [fault for fault in of(OversizedRequest) if fault not in self._let_in]
        self._oversized: list[OversizedRequest] = sorted(coming, key=lambda fault: fault.at)
        self._taken_back = self._let_in.difference(of(OversizedRequest))
        self._lost_aborts: list[LostAbort] = of(LostAbort)
        self._proxies: list[LumpyProxy] = of(LumpyProxy)
        self._growing: list[HostMemoryLeak] = of(HostMemoryLeak)
        self._spins: list[IdleSpin] = of(IdleSpin)
        self._stalls: list[StalledClient] = of(StalledClient)
        self._adapters: list[AdapterLoad] = of(AdapterLoad)
        self._grammars: list[GrammarCompile] = of(GrammarCompile)
        self._xids: list[Outage] = [fault for fault in of(Outage) if fault.xid]
        self.front_end = FrontEnd(of(SlowTokenizer), of(BlockedEventLoop))
        self.pages = FrozenPages(of(ExporterFrozen), None if before is None else before.pages)
        self.shows_host = bool(self._quotas or self._growing or self._spins or of(SlowTokenizer))
        changes = self._device.next_change(-FOREVER) < FOREVER or any(n.isolated for n in of(Neighbor))
        self._acts = bool(changes or self._leaks or self._oversized or self._growing or before is not None)
        self.due = -FOREVER if self._acts else FOREVER
        self._steps_matter = bool(self._offloads or self._stalls or self._adapters or self._grammars)

    # -- the speed of the device ------------------------------------------------------------------------------------

    def speed(self, now: float) -> float:
        """How fast the device works at `now`."""
        return self._slowdowns.speed(now)

    def next_edge(self, now: float) -> float:
        """When the speed, or a quota, next changes, after `now`."""
        quotas = (edge for quota in self._quotas for edge in (quota.fault.at, quota.fault.until) if edge > now)
        return min(self._slowdowns.next_edge(now), min(quotas, default=FOREVER))

    def hung_gpu(self, now: float) -> int | None:
        """The GPU whose collective hangs at `now`; None if none does."""
        return self._slowdowns.hung_gpu(now)

    def step_by_step(self, now: float) -> bool:
        """Whether steps must be computed one by one."""
        return self._steps_matter or self.speed(now) != 1.0 or any(quota.fault.acts(now) for quota in self._quotas)

    def step_end(self, begun: float, seconds: float) -> float:
        """When a step that begins at `begun` and is `seconds` of work ends; FOREVER if it never does."""
        return self._slowdowns.step_end(begun, seconds)

    def end_of(self, begun: float, seconds: float, plan: StepPlan, settings: EngineSettings, busy_s: float) -> float:
        """When a step of `plan` ends that takes `seconds`, of which the GPU works for `busy_s`."""
        for offload in self._offloads:
            if offload.acts(begun):
                seconds += offload.stall_s(plan, settings.kv_bytes_per_token)
        at = begun
        for quota in self._quotas:
            if quota.fault.acts(begun):
                at = self._quota_end(quota, begun, seconds, busy_s)
        return self.step_end(begun, max(seconds, at - begun))

    @staticmethod
    def _quota_end(quota: Quota, begun: float, seconds: float, busy_s: float) -> float:
        """The host's part first, then the thread polls for the GPU: both use CPU, and the poll must see the end."""
        launched = quota.runs_until(begun, max(seconds - busy_s, 0.0))
        gpu_done = launched + busy_s
        return max(gpu_done, quota.runs_until(launched, busy_s))

    # -- outages ----------------------------------------------------------------------------------------------------

    def next_outage(self) -> float:
        """When the next outage comes; FOREVER if none is left."""
        return self._outages[0].at if self._outages else FOREVER

    def take_outage(self) -> Outage:
        """The next outage, which then is none any more."""
        return self._outages.pop(0)

    def xid(self, now: float) -> int:
        """The code of the last device error; 0 if there was none."""
        return next((fault.xid for fault in reversed(self._xids) if fault.at <= now), 0)

    # -- conditions that change between steps -----------------------------------------------------------------------

    def act(self, engine: Engine, now: float) -> None:
        """Bring the conditions to `now`, and say when they change next (`due`)."""
        if not self._acts:
            return
        set_state = getattr(engine.runner, "set_state", None)
        if set_state is not None:
            set_state(self._device.state(now, engine.started_at))
        if engine.up:
            for leak in self._leaks:
                leak.act(engine, now)
            while self._taken_back:  # the fault was ended: its request must not block the queue for ever
                ended = self._taken_back.pop()
                self._let_in.discard(ended)
                engine.abort(ended.request_id)
            while self._oversized and self._oversized[0].at <= now:
                self._let_in.add(self._oversized[0])
                self._oversized.pop(0).let_in(engine, now)
            self._grow(engine, now)
        dues = [self._device.next_change(now), *(leak.next_change(now) for leak in self._leaks)]
        dues += [fault.at for fault in self._oversized[:1]]
        dues += [max(now + GROWTH_EVERY_S, fault.at) for fault in self._growing if now < fault.until]
        self.due = max(min(dues), now + 1e-6)

    def _grow(self, engine: Engine, now: float) -> None:
        for fault in self._growing:
            if fault.acts(now) and fault.limit_bytes < FOREVER and self.resident_bytes(engine) >= fault.limit_bytes:
                self._outages.insert(0, Outage(now, fault.down_s, "oom"))

    # -- requests on their way --------------------------------------------------------------------------------------

    def passed_at(self, request: Request, now: float) -> float:
        """When a request that was sent at `now` reaches the engine."""
        return self.front_end.passed_at(request, now)

    def loses_abort(self, now: float) -> bool:
        """Whether the engine does not hear of a client that goes at `now`."""
        return any(fault.acts(now) for fault in self._lost_aborts)

    def client_spans(self, request: Request) -> list[tuple[float, float]]:
        """What its client waited for after the engine had sent it: from one lump to the next."""
        for proxy in self._proxies:
            if proxy.acts(request.first_token_at):
                return lumps(request, proxy.every_s)
        return []

    def scheduler(self) -> NewScheduler:
        """What the engine makes its schedulers with."""
        if not (self._stalls or self._adapters or self._grammars):
            return Scheduler
        from .scheduler import HeldUpScheduler

        def new(settings: EngineSettings, pool: KvPool, counters: Counters) -> Scheduler:
            return HeldUpScheduler(settings, pool, counters, self.gates(), self._stalls)

        return new

    def gates(self) -> list[Gate]:
        """What requests have to pass before they may queue; new ones, with nothing loaded or compiled."""
        return [
            *(AdapterSlots(fault) for fault in self._adapters),
            *(GrammarThreads(fault) for fault in self._grammars),
        ]

    @property
    def stalls(self) -> list[StalledClient]:
        """Clients that do not read."""
        return self._stalls

    @property
    def proxies(self) -> list[LumpyProxy]:
        """Proxies on the way to the clients."""
        return self._proxies

    @staticmethod
    def wakes_at(engine: Engine, now: float) -> float:
        """When somebody who is held up in the engine may go on."""
        wakes_at = getattr(engine.scheduler, "wakes_at", None)
        return FOREVER if wakes_at is None else wakes_at(now)

    # -- the host ---------------------------------------------------------------------------------------------------

    BASE_BYTES = 4e9  # of a process that has just started

    def resident_bytes(self, engine: Engine) -> float:
        """Memory of the engine's process on the host."""
        leaked = sum(fault.bytes_per_request for fault in self._growing if fault.at <= engine.clock.now())
        return self.BASE_BYTES + leaked * (engine.counters.finished + engine.counters.aborted)

    def host_readings(self, engine: Engine, now: float, busy_ratio: float, window_s: float) -> dict[str, float]:
        """What a monitor of the host reads of a window that ends at `now`; `busy_ratio`: steps were under way."""
        spun = sum(fault.cores for fault in self._spins if fault.acts(now))
        tokenizing = min(self.front_end.take_busy_s() / window_s, 1.0) if window_s > 0 else 0.0
        cores = max(busy_ratio, spun) + tokenizing
        readings = {"process_cpu_ratio": cores, "process_memory_bytes": self.resident_bytes(engine)}
        for quota in self._quotas:
            acting = quota.fault.acts(now)
            readings["cgroup_cpu_throttled_ratio"] = quota.throttled_ratio(now) if acting else 0.0
            if acting:
                readings["process_cpu_ratio"] = min(cores, quota.fault.quota_ratio)
        return readings
