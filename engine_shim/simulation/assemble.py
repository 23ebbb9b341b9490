"""Puts a simulated run together: scenario, device, engine, demand, and the writer of the world stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from ..clock import VirtualClock
from ..demand.scenario import Scenario
from ..devices.profile_file import device_named
from ..engine.engine import Engine
from ..engine.speculative import SpeculationCounts
from ..faults import HUNG_COLLECTIVE, SLOW_TRANSFER, Faults
from ..policies import queue_rank
from ..runners.modelled.device_window import DeviceWindow
from ..runners.modelled.runner import ModelRunner
from ..telemetry import build_telemetry
from ..telemetry.compute_page import compute_families, vllm_families
from ..telemetry.held_up_page import show_held_up
from ..telemetry.protection_page import protection_families
from .disaggregated.simulation import simulate_fleet
from .parts import blocks_of, demand_of, gpu_pages_of, info_of
from .play import play
from .world import World


def simulate(
    scenario: Scenario,
    out: IO[bytes],
    *,
    device: str,
    seed: int,
    mode: str = "full",
    until_s: float | None = None,
    on_poll: Callable[[float], None] | None = None,
) -> None:
    """Play the scenario in virtual time and write its world stream to `out`.

    `until_s` ends it before the scenario's duration; `on_poll` hears of the scenario's time, in seconds. ValueError if
    the scenario and the device do not go together (the model does not fit), OSError from `out`.
    """
    profile = device_named(device)
    if scenario.engine.prefill_devices:
        simulate_fleet(scenario, out, profile, seed=seed, mode=mode, until_s=until_s, on_poll=on_poll)
        return
    clock = VirtualClock()
    start = clock.now()
    settings = scenario.engine
    blocks = blocks_of(scenario, profile)
    pool_tokens = blocks * settings.block_tokens
    info = info_of(settings, profile, blocks, seed, start)
    telemetry = build_telemetry(
        info, clock.now, salt=f"simulated {seed}".encode(), otlp_endpoint="", vllm=mode == "vllm-defaults"
    )
    telemetry.live.rank = queue_rank(settings, clock.now)
    faults = faults_of(scenario, start)
    world = World(
        out,
        telemetry,
        demand_of(scenario, profile, seed, start),
        DeviceWindow(profile, settings, pool_tokens, start),
        gpu_pages_of(settings, profile, seed, mode),
        mode=mode,
        start=start,
        meta={"scenario": scenario.stem, "device": profile.name, "seed": seed, "model": settings.model},
        on_poll=None if on_poll is None else lambda now: on_poll(now - start),
        faults=faults,
    )
    runner = ModelRunner(settings, profile)
    engine = Engine(settings, blocks, runner, clock, world, faults.scheduler())
    show_held_up(telemetry, engine)
    telemetry.add_families(protection_families(lambda: engine.protection))

    def drafts() -> SpeculationCounts:
        return engine.scheduler.speculation.counts

    telemetry.add_families(
        compute_families(settings, runner.calls, drafts), vllm_families(settings, settings.model, drafts)
    )
    until = start + min(until_s or scenario.duration_s, scenario.duration_s)
    play(engine, world.demand, until=until, observer=world, faults=faults)
    world.end(until)


def faults_of(scenario: Scenario, start: float) -> Faults:
    """What breaks on a single engine. ValueError for what needs another one."""
    faults = scenario.faults(start)
    gpus = scenario.engine.tensor_parallel
    for fault in faults:
        if fault.kind == SLOW_TRANSFER:
            raise ValueError(f"a {SLOW_TRANSFER} needs a link between engines; set prefill_devices and decode_devices")
        if fault.kind == HUNG_COLLECTIVE and gpus < 2:
            raise ValueError(f"a {HUNG_COLLECTIVE} needs several GPUs; set tensor_parallel to at least 2")
        if getattr(fault, "gpu", 0) >= gpus:
            raise ValueError(f"a {fault.kind} names GPU {fault.gpu}, and the engine has {gpus}; set tensor_parallel")
    return Faults(faults)
