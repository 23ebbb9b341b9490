"""Short evidence, built directly: looks at an engine, a device or a host, messages of a log, a page that fails.

`Evidence().look(0, req_running=8).look(10, …)` gives calls as every source would bring them; `named` judges them alone.
"""

from __future__ import annotations

import numpy as np

from gpuwatch.catalog import CATALOG
from gpuwatch.clues import judge
from gpuwatch.config import Config
from gpuwatch.model import Batch, Event, Frame, Histogram, Incident, Info, Subject
from gpuwatch.pipeline import Pipeline

START = 1_764_000_000.0
ENGINE = Subject(engine="e1")


class Evidence:
    """Calls in the making. Times are seconds since the first look."""

    def __init__(self, dialect: str = "vllm") -> None:
        self.batches: dict[float, list[Batch]] = {}
        if dialect:
            self.facts(dialect=dialect)

    def look(self, at: float, engine: str = "e1", rank: int = 0, source: str = "page", **signals: float) -> Evidence:
        """A look at an engine: signals by the catalogue's names."""
        return self._frame(at, Subject(engine, rank), source, "log" if source == "log" else "engine", signals)

    def line(self, at: float, rank: int = 0, **signals: float) -> Evidence:
        """A stats line of its log; short names as engines print them."""
        names = {
            "prompt": "prompt_tokens_per_second", "gen": "generated_tokens_per_second", "running": "req_running",
            "waiting": "req_waiting", "kv": "kv_usage_ratio", "hit": "prefix_hit_ratio",
        }  # fmt: skip
        return self.look(at, rank=rank, source="log", **{names.get(k, k): v for k, v in signals.items()})

    def gpu(self, at: float, gpu: str = "g0", **signals: float) -> Evidence:
        """A look at a device; short names without `gpu_` and unit."""
        names = {
            "util": "gpu_util_ratio", "sm": "gpu_sm_active_ratio", "dram": "gpu_dram_active_ratio",
            "used": "gpu_memory_used_bytes", "clock": "gpu_sm_clock_hertz", "clock_max": "gpu_sm_clock_max_hertz",
            "power": "gpu_power_watts", "power_limit": "gpu_power_limit_watts", "celsius": "gpu_temperature_celsius",
            "throttled": "gpu_throttled_ratio", "xid": "gpu_xid_last_code", "energy": "gpu_energy_joules_total",
            "gr": "gpu_gr_engine_active_ratio",
        }  # fmt: skip
        return self._frame(at, Subject(gpu=gpu), "dcgm", "gpu", {names.get(k, k): v for k, v in signals.items()})

    def host(self, at: float, **signals: float) -> Evidence:
        """A look at the host."""
        return self._frame(at, Subject(host="node"), "host", "host", signals)

    def say(self, at: float, kind: str, engine: str = "e1", times: int = 1, **detail: object) -> Evidence:
        """A message of a log that was recognised."""
        words = {"kind": kind} | {k: str(v) for k, v in detail.items()} | ({"count": str(times)} if times > 1 else {})
        return self.event(at, "notice", Subject(engine), words)

    def event(self, at: float, what: str, subject: Subject = ENGINE, detail: dict[str, str] | None = None) -> Evidence:
        """Any event."""
        events = (Event(subject, START + at, what, detail or {}),)
        return self._add(at, Batch("log", "log", subject, START + at, events=events))

    def facts(self, at: float = 0.0, engine: str = "e1", **labels: object) -> Evidence:
        """What an engine says of itself."""
        subject = Subject(engine)
        info = (Info(subject, START + at, {k: str(v) for k, v in labels.items()}),)
        return self._add(at, Batch("facts", "changes", subject, START + at, info=info))

    def gpu_facts(self, gpu: str, **labels: str) -> Evidence:
        """What a device says of itself."""
        subject = Subject(gpu=gpu)
        return self._add(0, Batch("dcgm", "gpu", Subject(host="node"), START, info=(Info(subject, START, labels),)))

    def histogram(self, at: float, name: str, total: float, count: float) -> Evidence:
        """A histogram as a page shows it, without a story about its buckets."""
        told = Histogram(ENGINE, "page", name, START + at, (1.0,), (0.0,), total, count)
        return self._add(at, Batch("page", "engine", ENGINE, START + at, histograms=(told,)))

    def buckets(self, at: float, name: str, told: dict[float, float], count: float) -> Evidence:
        """A histogram as a page shows it: bound -> observations up to it; `count`: all of them."""
        told = dict(sorted(told.items()))
        one = Histogram(ENGINE, "page", name, START + at, tuple(told), tuple(told.values()), count, count)
        return self._add(at, Batch("page", "engine", ENGINE, START + at, histograms=(one,)))

    def failed(self, at: float, why: str, engine: str = "e1") -> Evidence:
        """A look at a page that brought nothing."""
        return self._add(at, Batch("page", "engine", Subject(engine), START + at, error=why))

    def _frame(self, at: float, subject: Subject, source: str, role: str, signals: dict[str, float]) -> Evidence:
        assert set(signals) <= set(CATALOG), set(signals) - set(CATALOG)
        values = np.array([list(signals.values())], float)
        frame = Frame(subject, source, tuple(signals), np.array([START + at]), values)
        owner = Subject(host="node") if role == "gpu" else subject
        return self._add(at, Batch(source, role, owner, START + at, frames=(frame,)))

    def _add(self, at: float, batch: Batch) -> Evidence:
        self.batches.setdefault(START + at, []).append(batch)
        return self

    @property
    def calls(self) -> list[tuple[float, tuple[Batch, ...]]]:
        """The calls in the order of time."""
        return [(at, tuple(self.batches[at])) for at in sorted(self.batches)]


def judged(evidence: Evidence, config: Config | None = None) -> tuple[Incident, ...]:
    """The incidents of the pipeline and the clues together."""
    pipeline = Pipeline(config or Config())
    for now, batches in evidence.calls:
        pipeline.step(now, batches)
    return judge(evidence.calls, pipeline.verdict(), config or Config()).incidents


def named(evidence: Evidence) -> list[str]:
    """The classes of all incidents, `unknown` included; info in brackets."""
    return [f"({i.rule})" if i.severity == "info" else i.rule for i in judged(evidence)]


def first(evidence: Evidence) -> Incident:
    """The gravest incident."""
    return judged(evidence)[0]


def candidates_of(incident: Incident) -> set[str]:
    """The class, where it is one, and what else it may be."""
    return {incident.rule, *(a.rule for a in incident.alternatives)} - {"unknown"}
