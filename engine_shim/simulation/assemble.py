"""Puts a simulated run together: scenario, device, engine, demand, and the writer of the world stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from .. import __version__
from ..clock import VirtualClock
from ..demand.arrivals import Demand
from ..demand.capacity import rate_per_s, shortest_tokens
from ..demand.scenario import Scenario
from ..devices.profile_file import device_named
from ..devices.profiles import Device
from ..engine.engine import Engine
from ..engine.speculative import SpeculationCounts
from ..engine.step_extras import step_fields
from ..faults import HUNG_COLLECTIVE, SLOW_TRANSFER, Faults
from ..policies import queue_rank
from ..protection.protection import rejection_reasons
from ..runners.modelled.device_window import DeviceWindow
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..telemetry import EngineInfo, build_telemetry
from ..telemetry.compute_page import compute_families, vllm_families
from ..telemetry.gpu_page import Gpu, GpuPage
from ..telemetry.held_up_page import show_held_up
from ..telemetry.protection_page import protection_families
from .play import play
from .world import World

ENGINE_NAME = "shim"


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine is called, and which of the simulated GPUs it has: those from `first_gpu` on."""

    engine: str = ENGINE_NAME
    rank: int = 0
    first_gpu: int = 0


ALONE = Place()


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
        from .disaggregated.simulation import simulate_fleet

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


def blocks_of(scenario: Scenario, device: Device) -> int:
    """Blocks in each engine's pool. ValueError if it is smaller than a request of the length that the file asks for."""
    blocks = max(round(scenario.engine.pool_blocks(device) * scenario.pool_scale), 1)
    if scenario.engine.max_model_len != EngineSettings.max_model_len:
        scenario.engine.check_longest_fits(blocks)
    return blocks


def demand_of(scenario: Scenario, device: Device, seed: int, start: float) -> Demand:
    """The requests, sized by what the file says without a cure. ValueError for a stream of which none can be served."""
    settings = scenario.demand_engine
    pool_tokens = settings.pool_blocks(device) * settings.block_tokens
    for stream in scenario.streams:
        least_tokens = shortest_tokens(stream, pool_tokens)
        if least_tokens > min(pool_tokens, settings.max_model_len) and not settings.accept_oversized:
            raise ValueError(
                f"the shortest request of load {stream.name!r} needs {least_tokens} tokens, more than max_model_len "
                f"({settings.max_model_len}) or the KV pool ({pool_tokens}) allows; raise kv_pool_tokens or shorten it"
            )
    runner = ModelRunner(settings, device)
    rates = [rate_per_s(stream, settings, runner, pool_tokens) for stream in scenario.streams]
    return Demand(scenario.streams, rates, pool_tokens=pool_tokens, seed=seed, start=start)


def info_of(
    settings: EngineSettings, device: Device, blocks: int, seed: int, start: float, place: Place = ALONE
) -> EngineInfo:
    """What the engine says of itself."""
    return EngineInfo(
        engine=place.engine,
        rank=place.rank,
        model=settings.model,
        version=__version__,
        kv_total_blocks=blocks,
        block_tokens=settings.block_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        started_at=start,
        device=device.name,
        gpu_uuid=_uuid(device, seed, place.first_gpu),
        arguments=settings.arguments(),
        step_fields=step_fields(settings),
        rejection_reasons=rejection_reasons(settings),
    )


def gpu_pages_of(
    settings: EngineSettings, device: Device, seed: int, mode: str, place: Place = ALONE
) -> dict[str, GpuPage]:
    """One page for each GPU of the engine; the model has them all read the same."""
    counters = "stock" if mode == "vllm-defaults" else "full"
    numbers = range(place.first_gpu, place.first_gpu + settings.tensor_parallel)
    gpus = [Gpu(_uuid(device, seed, i), device.product, i) for i in numbers]
    return {gpu.uuid: GpuPage(gpu, counters=counters) for gpu in gpus}


def _uuid(device: Device, seed: int, index: int) -> str:
    """A GPU UUID in the driver's form, the same for the same run."""
    digits = hashlib.blake2b(f"{device.name}/{seed}/{index}".encode(), digest_size=16).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
