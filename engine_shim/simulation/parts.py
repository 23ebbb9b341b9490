"""The parts of a simulated run, whether it has one engine or a fleet of them: pools, demand, names and GPU pages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .. import __version__
from ..demand.arrivals import Demand
from ..demand.capacity import rate_per_s, shortest_tokens
from ..demand.scenario import Scenario
from ..devices.profiles import Device
from ..engine.step_extras import step_fields
from ..protection.protection import rejection_reasons
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..telemetry import EngineInfo
from ..telemetry.gpu_page import Gpu, GpuPage

ENGINE_NAME = "shim"


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine is called, and which of the simulated GPUs it has: those from `first_gpu` on."""

    engine: str = ENGINE_NAME
    rank: int = 0
    first_gpu: int = 0


ALONE = Place()


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
