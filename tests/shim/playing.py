"""Builders for tests of the engine: an engine on a modelled device, loads, and a transcript of what it showed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine_shim.clock import VirtualClock
from engine_shim.devices.profile_file import device_named
from engine_shim.engine.engine import Engine
from engine_shim.request import Request, Stage
from engine_shim.runners.modelled.runner import READINGS, ModelRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.simulation.play import play
from engine_shim.step import STEP_FIELDS


class Transcript:
    """Telemetry and observer that write everything down."""

    def __init__(self) -> None:
        self.records: list[list[float]] = []
        self.stages: list[tuple[str, Stage, float]] = []
        self.done: list[Request] = []
        self.polls: list[tuple[float, list[float] | None, bool, int, int]] = []  # when, open step, up, running, waiting
        self.open_readings: list[dict[str, float]] = []
        self.events: list[tuple[str, float, dict[str, Any]]] = []
        self._columns: list[dict[str, np.ndarray]] = []
        self._readings: list[dict[str, np.ndarray]] = []

    def step_begun(self, record: list[float]) -> None:
        self.records.append(record)

    def step_ended(self, record: list[float]) -> None:
        assert record is self.records[-1]

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        self.stages.append((request.id, stage, now))

    def finished(self, request: Request) -> None:
        self.done.append(request)

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        self._columns.append(columns)
        self._readings.append(readings)

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        scheduler = engine.scheduler
        record = list(open_record) if open_record else None
        self.polls.append((now, record, engine.up, len(scheduler.running), len(scheduler.waiting)))
        self.open_readings.append(dict(engine.open_readings()))

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        self.events.append((what, at, detail))

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """All steps, by field; empty if there were none."""
        if not self._columns:
            return {name: np.empty(0) for name in STEP_FIELDS}
        return {name: np.concatenate([block[name] for block in self._columns]) for name in self._columns[0]}

    @property
    def readings(self) -> dict[str, np.ndarray]:
        """Device readings of all steps, by name."""
        return {name: np.concatenate([block[name] for block in self._readings]) for name in READINGS if self._readings}


def make_engine(telemetry: Transcript | None = None, device: str = "h100", **settings: Any) -> Engine:
    """An engine in virtual time. The clock starts at 1000, so that times are easy to read."""
    checked = EngineSettings.from_table({"model": "7b", "kv_pool_tokens": 16_000, **settings})
    profile = device_named(device)
    runner = ModelRunner(checked, profile)
    return Engine(checked, checked.pool_blocks(profile), runner, VirtualClock(1000.0), telemetry or Transcript())


def request(
    name: str, prompt: int | list[int], output: int, at: float = 1000.0, max_tokens: int = 0, **more: Any
) -> Request:
    """A request that ends after `output` tokens: modelled when `prompt` is a number, real when it is token ids."""
    ids = prompt if isinstance(prompt, list) else []
    tokens = len(ids) if isinstance(prompt, list) else prompt
    return Request(name, tokens, max_tokens or output, at, output, prompt=ids, **more)


def steady(
    seed: int,
    rate_per_s: float,
    seconds: float,
    prompt: tuple[int, int],
    output: tuple[int, int],
    start: float = 1000.0,
) -> Iterator[Request]:
    """Poisson arrivals with uniform lengths."""
    draw = np.random.default_rng(seed)
    now, count = start, 0
    while (now := now + draw.exponential(1 / rate_per_s)) < start + seconds:
        count += 1
        yield request(f"r{count}", int(draw.integers(*prompt)), int(draw.integers(*output)), now)


def run_all(engine: Engine, most_steps: int = 20_000) -> None:
    """Step until nothing is in flight. The engine must get there."""
    for _ in range(most_steps):
        engine.step()
        if not (engine.has_mail() or engine.scheduler.running or engine.scheduler.waiting):
            return
    raise AssertionError(f"still in flight after {most_steps} steps: {[r.id for r in engine.scheduler.requests()]}")


def played(engine: Engine, arrivals: Iterator[Request], seconds: float, **more: Any) -> Transcript:
    """Play arrivals against the engine in virtual time, and return its transcript."""
    transcript = engine.telemetry
    assert isinstance(transcript, Transcript)
    play(engine, arrivals, until=engine.clock.now() + seconds, observer=transcript, **more)
    return transcript
