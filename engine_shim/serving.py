"""Puts a serving engine together: settings, weights or device model, runner, scheduler, telemetry, HTTP.

The only module that knows all of them. Errors in what was asked for are ValueErrors, raised before anything listens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_shim import __version__
from engine_shim.clock import Clock, RealClock
from engine_shim.devices.profile_file import device_named
from engine_shim.devices.profiles import Device
from engine_shim.engine.engine import Engine
from engine_shim.engine.scheduler import Scheduler
from engine_shim.engine.speculative import SpeculationCounts
from engine_shim.engine.step_extras import step_fields
from engine_shim.faults.live.faults import FaultyRunner, LiveFaults
from engine_shim.faults.live.gpu import LiveGpu, gpu_uuid
from engine_shim.faults.live.http import FaultyFront
from engine_shim.faults.scheduler import HeldUpScheduler
from engine_shim.http.address import check_address, check_url
from engine_shim.http.admin import AdminRoute
from engine_shim.http.protocol import ServedModel
from engine_shim.http.response_cache import ResponseCache
from engine_shim.http.server import EngineServer, Pages
from engine_shim.http.worker import EngineWorker
from engine_shim.kv.fragmentation import cuda_allocator
from engine_shim.model.chat_template import chat_form
from engine_shim.model.config import config_of, read_config, shape_of
from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.shapes import SHAPES
from engine_shim.model.tokens import CharTokenizer, FolderTokenizer, Tokenizer
from engine_shim.policies import queue_rank
from engine_shim.protection.protection import rejection_reasons
from engine_shim.runners.modelled.runner import ModelRunner, PacedRunner
from engine_shim.runners.pacing import LeastStepRunner
from engine_shim.runners.torch.heap import keep_large_blocks
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import Runner
from engine_shim.telemetry import EngineInfo, EngineTelemetry, build_telemetry
from engine_shim.telemetry.allocator_page import AllocatorPage
from engine_shim.telemetry.compute_page import compute_families, vllm_families
from engine_shim.telemetry.held_up_page import show_held_up
from engine_shim.telemetry.loop_page import LoopLag
from engine_shim.telemetry.protection_page import protection_families, response_cache_families

TORCH_POOL_TOKENS = 16_384  # 16 MiB of KV for the tiny model
SHUTDOWN_S = 5


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve` that are not keys of EngineSettings. See cli.py for what they mean."""

    host: str = "127.0.0.1"
    port: int = 8000
    runner: str = "torch"
    device: str | None = None
    seed: int = 0
    threads: int = 1
    served_model_name: str | None = None
    eos_token_id: tuple[int, ...] = ()
    engine_name: str = "shim"
    rank: int = 0
    ring: bool = False
    ring_dir: Path | None = None
    otlp_endpoint: str | None = None
    vllm_page: bool = False
    fault: tuple[str, ...] = ()
    admin: bool = False
    max_body_bytes: int = 8 << 20
    log_level: str = "warning"

    @property
    def can_break(self) -> bool:
        """Whether there are faults, or may be some later."""
        return bool(self.fault) or self.admin


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """A complete engine, ready to listen."""

    server: EngineServer
    engine: Engine
    telemetry: EngineTelemetry
    model: ServedModel


@dataclass(slots=True)
class _Computing:
    """What does the steps, and what is known of the model once it is loaded."""

    runner: Runner
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    gpu: LiveGpu | None = None
    calls: KernelCalls | None = None  # products by kernel, where they are counted


def build(options: ServeOptions, changes: Mapping[str, Any], clock: Clock | None = None) -> ServingEngine:
    """Everything but the listening socket. `changes` are keys of EngineSettings that differ from its defaults."""
    clock = clock or RealClock()
    if options.otlp_endpoint:
        check_url("otlp_endpoint", options.otlp_endpoint)
    folder = Path(changes["model"]) if _is_folder(changes.get("model")) else None
    settings = _settings(options, changes, folder)
    device = device_named(options.device or "h100") if options.runner == "model" else None
    blocks = settings.pool_blocks(device)
    if "max_model_len" in changes:  # asked for; the default, or that of a folder, may be more than the pool holds
        settings.check_longest_fits(blocks)
    wait, faults = _Wait(), LiveFaults(options.fault, clock, options.runner)
    if device is None:
        computing = _torch(options, settings, folder, blocks, clock)
        if settings.least_step_s:
            computing.runner = LeastStepRunner(computing.runner, settings.least_step_s, clock, wait)
        if options.can_break:
            computing.runner = FaultyRunner(computing.runner, faults, settings, clock, wait)
    else:
        computing = _modelled(options, settings, device, blocks, clock, wait, faults)
    for token in options.eos_token_id:
        if token >= computing.vocab_size:
            raise ValueError(f"eos_token_id {token} is not one of the model's {computing.vocab_size} tokens")
    model = ServedModel(
        name=options.served_model_name or settings.model,
        tokenizer=_tokenizer(folder, computing.vocab_size),
        vocab_size=computing.vocab_size,
        max_model_len=settings.max_model_len,
        kv_capacity_tokens=blocks * settings.block_tokens,
        eos_token_ids=options.eos_token_id or computing.eos_token_ids,
        has_priorities=settings.scheduling == "priority",
        chat=chat_form(folder, clock.now),
    )
    telemetry = _telemetry(options, settings, model, device, blocks, clock)
    telemetry.live.rank = queue_rank(settings, clock.now)
    if device is None and (options.device or "cpu") != "cpu":
        telemetry.add_families(AllocatorPage(cuda_allocator, clock.now).families())
    new_scheduler = HeldUpScheduler if options.can_break else Scheduler
    engine = Engine(settings, blocks, computing.runner, clock, telemetry, new_scheduler)
    telemetry.add_families(protection_families(lambda: engine.protection))

    def drafts() -> SpeculationCounts:
        return engine.scheduler.speculation.counts

    telemetry.add_families(
        compute_families(settings, computing.calls, drafts), vllm_families(settings, model.name, drafts)
    )
    if options.can_break:
        show_held_up(telemetry, engine)
    worker = EngineWorker(
        engine,
        lambda: telemetry.tick(clock.now()),
        lambda: faults.current.loses_abort(clock.now()),
        lambda: faults.act(engine),
    )
    wait.until = worker.stopping.wait

    def page(names: Sequence[str] | None) -> bytes:
        fresh = telemetry.render(names)
        return faults.current.pages.page(",".join(names or ()), fresh, clock.now()) if options.can_break else fresh

    pages = Pages(page, computing.gpu.render if computing.gpu else None)
    cache = ResponseCache(settings.response_cache_entries)
    if settings.response_cache_entries:
        telemetry.add_families(response_cache_families(cache))
    server = EngineServer(model, worker, pages, clock, options.max_body_bytes, cache)
    if options.can_break:
        server.around.append(lambda app: FaultyFront(app, lambda: faults.current, clock))
    lag = LoopLag()
    telemetry.add_families(lag.families())
    server.around.append(lag.around)
    if options.admin:
        server.around.append(lambda app: AdminRoute(app, faults))
    return ServingEngine(server, engine, telemetry, model)


def run(options: ServeOptions, changes: Mapping[str, Any]) -> None:
    """Serve until SIGINT or SIGTERM; prints one line with the address once requests are taken."""
    import uvicorn

    # Torch gives the interpreter away at each operation and must win it back from the event loop; at Python's 5 ms a
    # decode step would wait longer than it computes.
    sys.setswitchinterval(0.001)
    check_address(options.host, options.port)
    serving = build(options, changes)

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = self.servers[0].sockets[0].getsockname()[1]
                print(f"serving {serving.model.name} on http://{options.host}:{port}", flush=True)

    config = uvicorn.Config(
        serving.server.app(),
        host=options.host,
        port=options.port,
        log_level=options.log_level,
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    try:
        Announcing(config).run()
    finally:
        serving.telemetry.close()


class _Wait:
    """How a paced runner lets time pass: until the worker says otherwise, and at once when the server stops."""

    def __init__(self) -> None:
        self.until: Callable[[float], object] = time.sleep

    def __call__(self, seconds: float) -> bool:
        return bool(self.until(seconds))


def _is_folder(model: object) -> bool:
    return isinstance(model, str) and model not in SHAPES and Path(model).is_dir()


def _settings(options: ServeOptions, changes: Mapping[str, Any], folder: Path | None) -> EngineSettings:
    changes = dict(changes)
    if folder is not None:
        config = read_config(folder / "config.json")
        if changes.setdefault("max_model_len", config.max_positions) > config.max_positions:
            raise ValueError(f"max_model_len must be at most {config.max_positions} for {folder}")
        changes["model"] = folder.name
        if SHAPES.setdefault(folder.name, shape_of(config, folder.name)) != shape_of(config, folder.name):
            raise ValueError(f"{folder}: there is another model of the name {folder.name}; rename the folder")
    if options.runner == "torch":
        dtype = changes.setdefault("dtype", "fp32")
        changes.setdefault("kv_dtype", dtype)
        if not changes.get("kv_pool_tokens"):
            block_tokens = changes.get("block_tokens", EngineSettings.block_tokens)
            changes["kv_pool_tokens"] = TORCH_POOL_TOKENS // max(block_tokens, 1) * block_tokens
    settings = EngineSettings.from_table(changes)
    if settings.prefill_devices:
        raise ValueError("prefill_devices: `serve` runs one engine; play prefill and decode apart with `simulate`")
    return settings


def _torch(
    options: ServeOptions, settings: EngineSettings, folder: Path | None, blocks: int, clock: Clock
) -> _Computing:
    import torch

    from engine_shim.model.llama import Storage
    from engine_shim.model.weights import load_folder, seeded
    from engine_shim.runners.torch.runner import TorchRunner

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if settings.dtype not in types:
        raise ValueError(f"dtype {settings.dtype} is not supported on the torch runner; use one of {', '.join(types)}")
    device = options.device or "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not usable: {str(error).splitlines()[0]}") from error
    torch.set_num_threads(options.threads)
    keep_large_blocks()
    storage = Storage(settings.weights, settings.quantization_fallback)
    if folder is None:
        model = seeded(config_of(settings.shape), options.seed, types[settings.dtype], device, storage)
    else:
        model = load_folder(folder, types[settings.dtype], device, storage)
    runner = TorchRunner(model, blocks, settings.block_tokens, clock, settings.kv_dtype)
    return _Computing(runner, model.config.vocab_size, model.config.eos_token_ids, calls=model.calls)


def _modelled(
    options: ServeOptions,
    settings: EngineSettings,
    device: Device,
    blocks: int,
    clock: Clock,
    wait: _Wait,
    faults: LiveFaults,
) -> _Computing:
    timing = ModelRunner(settings, device)
    paced = FaultyRunner(PacedRunner(timing, wait), faults, settings, clock, wait)
    uuid = gpu_uuid(options.engine_name, options.rank)
    gpu = LiveGpu(paced, timing, settings, blocks * settings.block_tokens, uuid, clock, faults)
    return _Computing(gpu, settings.shape.vocab, gpu=gpu, calls=timing.calls)


def _tokenizer(folder: Path | None, vocab_size: int) -> Tokenizer:
    path = folder / "tokenizer.json" if folder is not None else None
    if path is not None and path.exists():
        tokenizer = FolderTokenizer(path)
        if tokenizer.vocab_size > vocab_size:
            raise ValueError(f"{path}: has {tokenizer.vocab_size} tokens, the model only {vocab_size}")
        return tokenizer
    return CharTokenizer(min(vocab_size, 512))


def _telemetry(
    options: ServeOptions,
    settings: EngineSettings,
    model: ServedModel,
    device: Device | None,
    blocks: int,
    clock: Clock,
) -> EngineTelemetry:
    info = EngineInfo(
        engine=options.engine_name,
        model=model.name,
        version=__version__,
        kv_total_blocks=blocks,
        block_tokens=settings.block_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        started_at=clock.now(),
        rank=options.rank,
        device=device.name if device else options.device or "cpu",
        gpu_uuid=gpu_uuid(options.engine_name, options.rank) if device else "",
        arguments=settings.arguments() | {"runner": options.runner},
        step_fields=step_fields(settings),
        rejection_reasons=rejection_reasons(settings),
    )
    try:
        return build_telemetry(
            info,
            clock.now,
            ring=options.ring,
            ring_dir=str(options.ring_dir) if options.ring_dir else None,
            monotonic_ns=time.monotonic_ns(),
            otlp_endpoint=options.otlp_endpoint,
            vllm=options.vllm_page,
        )
    except OSError as error:
        place = error.filename or options.ring_dir
        raise ValueError(f"ring_dir: {place}: {error.strerror}; name a folder that can be written") from error
