"""A scenario on a fleet: every engine with its own device, pages and records, in one world stream (docs/capture.md).

The engines are called `shim-prefill` and `shim-decode`, ranks from 0; a request has the same hash on both. Load factors
(`rho`) refer to one engine that does everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from ...clock import VirtualClock
from ...demand.arrivals import Demand
from ...demand.scenario import Scenario
from ...devices.profiles import Device
from ...faults import SLOW_TRANSFER, Slowdown
from ...policies import queue_rank
from ...runners.modelled.device_window import DeviceWindow
from ...settings.engine import EngineSettings
from ...telemetry import EngineTelemetry, build_telemetry
from ...telemetry.protection_page import protection_families
from ..parts import Place, blocks_of, demand_of, gpu_pages_of, info_of
from ..world import World
from .fleet import Fleet
from .instance import Instance
from .link import TransferLink
from .transfer_page import decode_families, prefill_families


@dataclass(frozen=True, slots=True)
class _Run:
    """What all engines of one run share."""

    scenario: Scenario
    device: Device
    seed: int
    mode: str
    clock: VirtualClock
    start: float
    demand: Demand
    slow: list[Slowdown]


def settings_for(role: str, settings: EngineSettings) -> EngineSettings:
    """A decode engine takes a request in only with room for its whole prompt: KV that comes needs a place."""
    if role == "decode" and settings.reserve == "none":
        return settings.replaced({"reserve": "prompt"})
    return settings


def links_slow(scenario: Scenario, start: float) -> list[Slowdown]:
    """When the links are slower. ValueError for faults that only a single engine can play."""
    slow = []
    for fault in scenario.faults(start):
        if not isinstance(fault, Slowdown) or fault.kind != SLOW_TRANSFER:
            raise ValueError(f"a {fault.kind} is played on a single engine only; remove it, or prefill_devices")
        slow.append(fault)
    return slow


def simulate_fleet(
    scenario: Scenario,
    out: IO[bytes],
    device: Device,
    *,
    seed: int,
    mode: str,
    until_s: float | None,
    on_poll: Callable[[float], None] | None,
) -> None:
    """As assemble.simulate."""
    clock = VirtualClock()
    start = clock.now()
    demand = demand_of(scenario, device, seed, start)
    run = _Run(scenario, device, seed, mode, clock, start, demand, links_slow(scenario, start))
    roles = ["prefill"] * scenario.engine.prefill_devices + ["decode"] * scenario.engine.decode_devices
    worlds: list[World] = []
    instances: dict[str, list[Instance]] = {"prefill": [], "decode": []}
    for index, role in enumerate(roles):
        place = Place(f"shim-{role}", len(instances[role]), index * scenario.engine.tensor_parallel)
        heard = on_poll if index == len(roles) - 1 else None
        world, instance = _instance(run, out, role, place, heard)
        worlds.append(world)
        instances[role].append(instance)
    until = start + min(until_s or scenario.duration_s, scenario.duration_s)
    Fleet(clock, instances["prefill"], instances["decode"], demand, demand.finished).run(until)
    for world in worlds:
        world.end(until, last=world is worlds[-1])


def _instance(
    run: _Run, out: IO[bytes], role: str, place: Place, on_poll: Callable[[float], None] | None
) -> tuple[World, Instance]:
    settings, start = settings_for(role, run.scenario.engine), run.start
    blocks = blocks_of(run.scenario, run.device)
    info = info_of(settings, run.device, blocks, run.seed, start, place)
    telemetry = build_telemetry(
        info, run.clock.now, salt=f"simulated {run.seed}".encode(), otlp_endpoint="", vllm=run.mode == "vllm-defaults"
    )
    telemetry.live.rank = queue_rank(settings, run.clock.now)
    meta: dict[str, str | int | float] = {
        "scenario": run.scenario.stem,
        "device": run.device.name,
        "seed": run.seed,
        "model": settings.model,
    }
    world = World(
        out,
        telemetry,
        run.demand,
        DeviceWindow(run.device, settings, blocks * settings.block_tokens, start),
        gpu_pages_of(settings, run.device, run.seed, run.mode, place),
        mode=run.mode,
        start=start,
        meta=meta,
        on_poll=None if on_poll is None else lambda now: on_poll(now - start),
        of_fleet=True,
        first=(role, place.rank) == ("prefill", 0),
    )
    link = TransferLink(settings.kv_transfer_bytes_per_s, settings.kv_transfer_latency_s, run.slow)
    instance = Instance(role, settings, blocks, run.device, run.clock, world, world, link)
    _show(telemetry, role, instance, run.clock)
    return world, instance


def _show(telemetry: EngineTelemetry, role: str, instance: Instance, clock: VirtualClock) -> None:
    engine = instance.engine
    telemetry.add_families(protection_families(lambda: engine.protection))
    if role == "prefill":
        telemetry.add_families(prefill_families(lambda: engine.scheduler.kv_transfers))
    else:
        telemetry.add_families(decode_families(instance.link, clock.now))
