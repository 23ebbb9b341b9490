"""Plays a case: the engine in virtual time, the agent behind the capture format, and what each of them had to say."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from engine_shim.simulation.assemble import simulate
from gpuwatch.config import Config
from gpuwatch.model import Incident, Tick, Verdict
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import calls, read_capture
from tests.bench.scores.case import Case, expectation, scenario_of
from tests.bench.scores.truth import Truth, truth


@dataclass(frozen=True)
class Seen:
    """A top-level incident of a verdict; times are seconds from the scenario's start, NaN for "not"."""

    rule: str
    severity: str
    onset_s: float
    detected_s: float
    resolved_s: float
    trigger: str | None
    mechanism: str
    symptoms: tuple[str, ...]
    action: str
    confidence: float


@dataclass(frozen=True)
class Run:
    """What came of a case: incidents in the verdict's order, pages sent, and the truth where the stream shows it."""

    case: Case
    seen: tuple[Seen, ...] = ()
    pages: int = 0
    truth: Truth | None = None
    blind: tuple[str, ...] = ()
    trouble: str = field(default="", compare=False)  # why it could not be played

    @property
    def top(self) -> str:
        """The first class of the verdict, `none` without an incident."""
        return self.seen[0].rule if self.seen else "none"


def world_of(case: Case) -> bytes:
    """The world stream of a case. ValueError where scenario and device do not go together."""
    out = io.BytesIO()
    simulate(scenario_of(case), out, device=case.device, seed=case.seed, mode=case.mode)
    return out.getvalue()


def judged(stream: BinaryIO, watch: Callable[[Tick], None] | None = None) -> Pipeline:
    """A pipeline that has seen the whole stream; `watch` hears of each second."""
    pipeline = Pipeline(Config())
    for now, batches in calls(read_capture(stream)):
        tick = pipeline.step(*quantized(now, batches))
        if watch is not None:
            watch(tick)
    return pipeline


def run(case: Case) -> Run:
    """Play and judge. A case that cannot be played says why in `trouble`."""
    try:
        stream = world_of(case)
    except ValueError as error:
        return Run(case, trouble=str(error))
    start = read_capture(io.BytesIO(stream)).header.t
    pages = 0

    def count(tick: Tick) -> None:
        nonlocal pages
        pages += sum(t.kind in ("opened", "worsened") and t.incident.severity == "page" for t in tick.transitions)

    verdict = judged(io.BytesIO(stream), count).verdict()
    expect = expectation(case.stem)
    known = truth(stream, expect["class"], expect.get("onset_s", math.nan)) if case.mode == "full" else None
    return Run(case, seen(verdict, start), pages, known, tuple(sorted({b.rule for b in verdict.blind})))


def seen(verdict: Verdict, start: float) -> tuple[Seen, ...]:
    """The incidents of a verdict, in seconds from `start`."""
    return tuple(_seen(incident, start) for incident in verdict.incidents)


def _seen(i: Incident, start: float) -> Seen:
    return Seen(
        rule=i.rule,
        severity=i.severity,
        onset_s=i.onset_at - start,
        detected_s=i.detected_at - start,
        resolved_s=math.nan if i.resolved_at is None else i.resolved_at - start,
        trigger=i.trigger.kind if i.trigger else None,
        mechanism=i.mechanism,
        symptoms=tuple(s.rule for s in i.symptoms),
        action=i.action,
        confidence=i.confidence,
    )
