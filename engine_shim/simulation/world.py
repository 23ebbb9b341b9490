"""The writer of the world stream (docs/capture.md): what a simulated engine and its device show, as an agent gets it.

The engine's telemetry and the simulation's observer in one: stage changes and finished requests come from the engine,
blocks of completed steps and polls from `simulate.play`. Lines are in the order of virtual time; the same scenario,
device and seed give the same bytes. No prompt or completion text, no request id: requests appear as salted hashes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from .. import __version__
from ..demand.arrivals import Demand
from ..devices.state import NORMAL
from ..faults import Faults
from ..faults.view import HOST, FaultView
from ..request import Request, Stage
from ..runners.modelled.device_window import DeviceWindow
from ..step import STEP_FIELDS
from ..telemetry import EngineTelemetry
from ..telemetry.gpu_page import GpuPage
from ..telemetry.milestones import stage_spans
from ..telemetry.otlp_wire import OtlpEncoder

if TYPE_CHECKING:
    from ..engine.engine import Engine

MODES = ("full", "wire", "vllm-defaults")
TABLE_ROWS = 64
SPAN_DELAY_S = 0.5
_FRACTIONS = ("begun_at", "ended_at", "head_wait_seconds")
_BEGUN = STEP_FIELDS.index("begun_at")
# Signals that a dcgm-like page needs and the catalogue does not know.
_PAGE_ONLY = ("gpu_memory_free_bytes",)

Emit = Callable[[float, "list[float] | None", "Engine"], None]


class World:
    """Implements simulate.Observer and the engine's Telemetry, and writes to `out`. OSError comes from `out`."""

    def __init__(
        self,
        out: IO[bytes],
        telemetry: EngineTelemetry,
        demand: Demand,
        window: DeviceWindow,
        gpu_pages: dict[str, GpuPage],
        *,
        mode: str,
        start: float,
        meta: dict[str, str | int | float],
        on_poll: Callable[[float], None] | None = None,
        of_fleet: bool = False,
        first: bool = True,
        faults: Faults | None = None,
    ) -> None:
        """Of several engines in one stream (`of_fleet`), each record names its own; the `first` writes the header."""
        self._out = out
        self._encode = msgspec.json.Encoder().encode
        self._telemetry = telemetry
        self.demand = demand
        self._window = window
        self._gpu_pages = gpu_pages
        self._view = FaultView(faults or Faults(()))
        self._mode = mode
        self._on_poll = on_poll
        self._polls = 0
        self._up = True
        self._busy_ratio = 0.0  # share of the last window in which steps were under way
        self._blocks: list[dict[str, np.ndarray]] = []
        self._ended: list[tuple[Request, int]] = []
        self._readings: dict[str, dict[str, float]] = {}  # of each GPU, by UUID
        info = telemetry.info
        self._fields = info.step_fields
        self._otlp = OtlpEncoder(info.engine, info.version, info.rank, info.model) if mode == "wire" else None
        self._emitters = self._choose(mode)
        self._subject = {"engine": info.engine, "rank": info.rank} if of_fleet else {}
        header = {"gpuwatch_capture": 1, "producer": f"engine_shim {__version__}", "clock": "virtual", "t": start}
        if first:
            self._out.write(self._encode({**header, "engine": info.engine, "meta": meta}) + b"\n")
        self._info(start)

    def step_begun(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def step_ended(self, record: list[float]) -> None:
        """Not called in virtual time."""

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """See step.Telemetry."""
        self._telemetry.stage_changed(request, stage, now)

    def finished(self, request: Request) -> None:
        """See step.Telemetry. What a crash cut off is traced by nobody: the exporter died with the engine."""
        if self._up and request.finish_reason != "error" and self._mode != "vllm-defaults":  # which shows no spans
            self._ended.append((request, self._telemetry.live.request_hash(request)))
        self._telemetry.finished(request)
        self.demand.finished(request)

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """See simulate.Observer."""
        if not len(columns["step"]):
            return
        self._telemetry.steps(columns)
        self._window.steps(columns["begun_at"], columns["ended_at"], readings)
        self._blocks.append(columns)

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """See simulate.Observer."""
        open_since = None if open_record is None else open_record[_BEGUN]
        open_readings = {} if open_record is None else engine.open_readings()
        idle = engine.runner.idle_readings()
        readings = self._window.close(now, open_since, open_readings, idle, up=engine.up)
        self._busy_ratio = readings["gpu_util_ratio"]
        state = getattr(engine.runner, "state", NORMAL)
        for index, (uuid, page) in enumerate(self._gpu_pages.items()):
            self._readings[uuid] = self._view.of_gpu(index, readings, now, state)
            page.update(now, self._readings[uuid])
        for every, emit in self._emitters:
            if self._polls % every == 0:
                emit(now, open_record, engine)
        self._blocks.clear()
        self._polls += 1
        if self._on_poll is not None:
            self._on_poll(now)

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """See simulate.Observer: a restart clears what the engine knew, and the agent is told as it would be."""
        if what == "down":
            self._up = False
            self._telemetry.live.clear()
        elif what == "up":
            self._up = True
            self._telemetry.restarted(at)
            if self._mode == "full":
                self._line({"t": _us(at), "src": "event", "what": "restart", "detail": detail})
            self._info(at)
        elif what == "failed_start" and self._mode == "full":
            self._line({"t": _us(at), "src": "event", "what": "restart", "detail": {**detail, "ready": False}})

    def end(self, now: float, last: bool = True) -> None:
        """The stream is complete: the last block and, by the `last` of its engines, the `end` record."""
        if self._blocks and self._mode == "full":
            self._emit_block(now, None)
        if last:
            self._line({"t": _us(now), "src": "end"})
        self._out.flush()

    def _choose(self, mode: str) -> list[tuple[int, Emit]]:
        """(every how many polls, what): what each mode shows."""
        if mode == "full":
            whole = [self._emit_steps, self._emit_requests, self._emit_spans, self._emit_readings]
            return [*((1, emit) for emit in whole), (2, self._emit_page)]
        if mode == "wire":
            return [(1, self._emit_otlp), (1, self._emit_page), (1, self._emit_gpu_pages)]
        if mode == "vllm-defaults":
            return [(1, self._emit_page), (5, self._emit_gpu_pages)]
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")

    def _emit_steps(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        if engine.up or self._blocks:
            self._emit_block(now, open_record)

    def _emit_block(self, now: float, open_record: list[float] | None) -> None:
        cols = {name: _column(name, [block[name] for block in self._blocks]) for name in self._fields}
        shown = None
        if open_record is not None:
            shown = {
                name: _us(value) if name in _FRACTIONS else int(value)
                for name, value in zip(self._fields, open_record, strict=True)
            }
        self._line({"t": _us(now), "src": "steps", "cols": cols, "open": shown})

    def _emit_requests(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        if not engine.up:
            return
        rows = self._telemetry.live.rows(TABLE_ROWS)
        cols = {
            "id": [hashed for _, hashed in rows],
            "arrived_at": [_us(r.arrived_at) for r, _ in rows],
            "stage": [int(r.stage) for r, _ in rows],
            "prompt_tokens": [r.prompt_tokens for r, _ in rows],
            "max_tokens": [r.max_tokens for r, _ in rows],
            "generated_tokens": [r.output_tokens for r, _ in rows],
            "blocks": [len(r.blocks) for r, _ in rows],
            "preemptions": [r.preemptions for r, _ in rows],
        }
        self._line({"t": _us(now), "src": "requests", "cols": cols})

    def _emit_spans(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        due = self._take_due(now)
        if not due:
            return
        rows: list[tuple[str, str, float, float, int, int, int, str]] = []
        for request, hashed in due:
            tokens = (request.prompt_tokens, request.output_tokens, request.cached_tokens)
            name = f"{hashed:016x}"
            rows.append(
                (name, "request", _us(request.arrived_at), _us(request.finished_at), *tokens, request.finish_reason)
            )
            rows += [(name, stage, _us(start), _us(end), *tokens, "") for stage, start, end in stage_spans(request)]
            waits = self._view.client_spans(request)
            rows += [(name, "client", _us(start), _us(end), *tokens, "") for start, end in waits]
        names = ("request", "stage", "start", "end", "prompt_tokens", "output_tokens", "cached_tokens", "outcome")
        self._line({"t": _us(now), "src": "spans", "cols": dict(zip(names, zip(*rows, strict=True), strict=True))})

    def _emit_otlp(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        due = self._take_due(now)
        if due and self._otlp is not None:
            body = base64.b64encode(self._otlp.encode(due)).decode()
            self._line({"t": _us(now), "src": "otlp", "body": body})

    def _emit_readings(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        for uuid, readings in self._readings.items():
            cols = {name: [_six(value)] for name, value in readings.items() if name not in _PAGE_ONLY}
            self._line({"t": _us(now), "src": "readings", "subject": {"gpu": uuid}, "at": [_us(now)], "cols": cols})
        if self._view.shows_host and engine.up:
            host = self._view.of_host(engine, now, self._busy_ratio)
            cols = {name: [_six(value)] for name, value in host.items()}
            self._line({"t": _us(now), "src": "readings", "subject": {"host": HOST}, "at": [_us(now)], "cols": cols})

    def _emit_page(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        if engine.up:
            body = self._view.page("engine", self._telemetry.render(), now).decode()
            # How long the page took to read has no meaning in virtual time.
            self._line({"t": _us(now), "src": "page", "role": "engine", "body": body, "took_s": None})
        else:
            self._line({"t": _us(now), "src": "error", "role": "engine", "error": "connection refused"})

    def _emit_gpu_pages(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        body = b"".join(page.render() for page in self._gpu_pages.values()).decode()
        self._line({"t": _us(now), "src": "page", "role": "gpu", "body": body, "took_s": None})

    def _take_due(self, now: float) -> list[tuple[Request, int]]:
        """Finished requests whose spans have had the exporter's delay."""
        due = [row for row in self._ended if row[0].finished_at <= now - SPAN_DELAY_S]
        if due:
            self._ended = [row for row in self._ended if row[0].finished_at > now - SPAN_DELAY_S]
        return due

    def _info(self, at: float) -> None:
        if self._mode != "vllm-defaults":
            self._line({"t": _us(at), "src": "info", "labels": self._telemetry.info.labels()})

    def _line(self, record: dict[str, Any]) -> None:
        self._out.write(self._encode(record | self._subject) + b"\n")


def _column(name: str, parts: list[np.ndarray]) -> list[float] | list[int]:
    """A step field over all blocks: times to the microsecond, everything else whole."""
    if not parts:
        return []
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if name in _FRACTIONS:
        return np.round(values, 6).tolist()
    return values.astype(np.int64).tolist()


def _us(t: float) -> float:
    return round(t, 6)


def _six(value: float) -> float | None:
    """Six significant digits; None where the value is not known."""
    return float(f"{value:.6g}") if value == value else None
