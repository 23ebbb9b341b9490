"""What the modelled device predicts for runs whose results others have published (published.toml).

Every run goes through the engine: its scheduler, its pool, the modelled runner. Only lengths, numbers of requests, GPUs
and types come from the source; one constant is fitted to some of the numbers (devices/profiles.py: Hopper's share of fp8).
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..clock import VirtualClock
from ..devices.profiles import DEVICES, Device
from ..engine.engine import Engine
from ..model.shapes import SHAPES, Shape
from ..request import Request
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings, room_tokens
from ..simulation.play import play
from .silence import Silence

FILE = Path(__file__).with_name("published.toml")
FOREVER_S, POLL_S = 1e6, 1e3
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Compared:
    """One published number and its prediction, in the unit of the metric."""

    source: str
    device: str
    gpus: int
    model: str
    load: str
    metric: str
    published: float
    predicted: float

    @property
    def error_ratio(self) -> float:
        """How far the prediction is above (or below) what was published."""
        return self.predicted / self.published - 1


def sources() -> dict[str, dict[str, str]]:
    """Where the numbers come from: engine, url, how they were measured, what is left open."""
    found: dict[str, dict[str, str]] = _table()["source"]
    return found


def compare(keep: Callable[[str], bool] = bool) -> Iterator[Compared]:
    """All comparisons, of the sources that `keep` accepts."""
    table = _table()
    for name, shape in table["shape"].items():
        SHAPES.setdefault(name, Shape(name, **shape))
    for kind, run in _KINDS.items():
        for entry in table[kind]:
            if keep(entry["source"]):
                yield from run(_Setup(entry, _device(table, entry["device"])))


def _table() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _device(table: Mapping[str, Any], name: str) -> Device:
    if name in DEVICES:
        return DEVICES[name]
    values = dict(table["device"][name])
    return replace(DEVICES[values.pop("like")], **values)


class _Setup:
    """One entry of the file: who computes what."""

    def __init__(self, entry: Mapping[str, Any], device: Device) -> None:
        self.entry = entry
        self.device = device
        self.gpus: int = entry.get("gpus", 1)

    def settings(self, **more: Any) -> EngineSettings:
        dtype = self.entry["dtype"]
        return EngineSettings.from_table({
            "model": self.entry["shape"], "dtype": dtype, "kv_dtype": dtype, "tensor_parallel": self.gpus,
            "prefix_cache": False, "watermark_ratio": 0.0, "block_tokens": BLOCK_TOKENS, **more,
        })  # fmt: skip

    def rows(self) -> list[list[float]]:
        rows: list[list[float]] = self.entry["rows"]
        return rows

    def compared(self, load: str, metric: str, published: float, predicted: float) -> Compared:
        e = self.entry
        model = f"{e['shape']} {e['dtype']}"
        return Compared(e["source"], self.device.name, self.gpus, model, load, metric, published, predicted)


@dataclass(slots=True)
class _Run:
    """Requests that a run has served; times in seconds from its start."""

    done: list[Request]
    start: float

    @property
    def tokens_per_s(self) -> float:
        return sum(r.output_tokens for r in self.done) / (max(r.finished_at for r in self.done) - self.start)

    @property
    def ttft_p50_ms(self) -> float:
        return 1e3 * statistics.median(r.first_token_at - r.arrived_at for r in self.done)

    @property
    def tpot_p50_ms(self) -> float:
        longer = [r for r in self.done if r.output_tokens > 1]
        return 1e3 * statistics.median((r.last_token_at - r.first_token_at) / (r.output_tokens - 1) for r in longer)


class _Notes(Silence):
    """The simulation's observer too: keeps the requests that have left, and nothing else."""

    def __init__(self) -> None:
        self.done: list[Request] = []
        self.loop: _Clients | None = None

    def finished(self, request: Request) -> None:
        """See step.Telemetry."""
        self.done.append(request)
        if self.loop is not None:
            self.loop.finished(request)

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """See simulate.Observer."""

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """See simulate.Observer."""

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """See simulate.Observer."""


class _Clients:
    """So many clients that send their next request with the end of the last: simulate.Arrivals."""

    reacts = True

    def __init__(self, clients: int, requests: int, tokens_in: int, tokens_out: int, start: float) -> None:
        self._lengths = (tokens_in, tokens_out)
        self._left = requests
        self._due = [start] * min(clients, requests)

    def peek(self) -> float:
        """See Arrivals."""
        return min(self._due, default=float("inf"))

    def take(self) -> Request:
        """See Arrivals."""
        at = self.peek()
        self._due.remove(at)
        self._left -= 1
        return _request(self._left, *self._lengths, at)

    def finished(self, request: Request) -> None:
        """One client is free again."""
        if self._left > len(self._due):
            self._due.append(request.finished_at)


def _request(number: int, tokens_in: int, tokens_out: int, at: float) -> Request:
    return Request(f"r{number}", tokens_in, max(tokens_out, 1), at, max(tokens_out, 1))


def _play(setup: _Setup, settings: EngineSettings, blocks: int, lengths: Sequence[tuple[int, int]]) -> _Run:
    """All requests at once."""
    clock, notes = VirtualClock(), _Notes()
    engine = Engine(settings, blocks, ModelRunner(settings, setup.device), clock, notes)
    start = clock.now()
    requests = (_request(number, *tokens, start) for number, tokens in enumerate(lengths))
    _until_done(engine, requests, notes, len(lengths))
    return _Run(notes.done, start)


def _until_done(engine: Engine, arrivals: Any, notes: _Notes, expected: int) -> None:
    play(engine, arrivals, until=engine.clock.now() + FOREVER_S, observer=notes, poll_s=POLL_S)
    served = [r for r in notes.done if r.finish_reason in ("stop", "length")]
    if len(served) != expected:
        raise RuntimeError(f"{len(served)} of {expected} requests were served: {asdict(engine.settings)}")


def _batches(setup: _Setup) -> Iterator[Compared]:
    for batch, tokens_in, tokens_out, published in setup.rows():
        b, i, o = int(batch), int(tokens_in), int(tokens_out)
        settings = setup.settings(max_num_seqs=b, max_step_tokens=b * i, kv_pool_tokens=BLOCK_TOKENS)
        run = _play(setup, settings, b * -(-(i + o) // BLOCK_TOKENS), [(i, o)] * b)
        predicted = run.tokens_per_s / (setup.gpus if setup.entry.get("per_gpu") else 1)
        yield setup.compared(f"batch {b}, {i} → {o}", "throughput", published, predicted)


def _first_tokens(setup: _Setup) -> Iterator[Compared]:
    for tokens_in, published in setup.rows():
        i = int(tokens_in)
        settings = setup.settings(max_step_tokens=i, max_num_seqs=1, kv_pool_tokens=BLOCK_TOKENS)
        run = _play(setup, settings, -(-(i + 1) // BLOCK_TOKENS), [(i, 1)])
        yield setup.compared(f"1 request, {i} in", "ttft", published, run.ttft_p50_ms)


def _queues(setup: _Setup) -> Iterator[Compared]:
    for count, tokens_in, tokens_out, published in setup.rows():
        n, i, o = int(count), int(tokens_in), int(tokens_out)
        settings = setup.settings(max_num_seqs=2048, max_step_tokens=8192, memory_ratio=0.95, reserve="max_tokens")
        run = _play(setup, settings, settings.pool_blocks(setup.device), [(i, o)] * n)
        yield setup.compared(f"queue of {n}, {i} → {o}", "throughput", published, run.tokens_per_s)


def _replays(setup: _Setup) -> Iterator[Compared]:
    entry = setup.entry
    lengths = list(zip(entry["tokens_in"], entry["tokens_out"], strict=True))
    settings = setup.settings(max_num_seqs=1024, memory_ratio=0.95)
    run = _play(setup, settings, settings.pool_blocks(setup.device), lengths)
    load, published = f"{len(lengths)} of ShareGPT", entry["published"]
    yield setup.compared(load, "throughput", published["throughput"], run.tokens_per_s)
    yield setup.compared(load, "ttft", published["ttft_p50"], run.ttft_p50_ms)
    yield setup.compared(load, "tpot", published["tpot_p50"], run.tpot_p50_ms)


def _clients(setup: _Setup) -> Iterator[Compared]:
    for clients, tokens_in, tokens_out, published in setup.rows():
        c, i, o = int(clients), int(tokens_in), int(tokens_out)
        settings, clock, notes = setup.settings(max_num_seqs=256), VirtualClock(), _Notes()
        runner = ModelRunner(settings, setup.device)
        engine = Engine(settings, settings.pool_blocks(setup.device), runner, clock, notes)
        notes.loop = _Clients(c, 20 * c, i, o, clock.now())
        _until_done(engine, notes.loop, notes, 20 * c)
        run = _Run(notes.done, clock.now())
        yield setup.compared(f"{c} clients, {i} → {o}", "tpot", published, run.tpot_p50_ms)


def _rooms(setup: _Setup) -> Iterator[Compared]:
    entry = setup.entry
    tokens = room_tokens(setup.settings(), setup.device)
    yield setup.compared("KV pool", "kv tokens", entry["kv_tokens"], tokens)
    yield setup.compared(
        f"requests of {entry['max_len']:,}", "max concurrency", entry["kv_tokens"] / entry["max_len"],
        tokens / entry["max_len"],
    )  # fmt: skip


_KINDS: dict[str, Callable[[_Setup], Iterator[Compared]]] = {
    "batches": _batches, "first_tokens": _first_tokens, "queues": _queues, "replays": _replays, "clients": _clients,
    "rooms": _rooms,
}  # fmt: skip
