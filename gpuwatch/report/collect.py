"""From a record to a ReportData: replay it through the pipeline, sample each second, and cut out the span that matters.

Replaying is the point: the report shows the verdict that the recorded calls give, not one that was copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..model import Batch, Floats, Incident, Subject, Verdict
from .data import Gap, ReportData, RequestBar, Series
from .plots import PLOTS
from .request_spans import in_flight, trailing_p95
from .sampling import GPU_SIGNALS, EngineLog, Sampler

if TYPE_CHECKING:
    from ..pipeline import Pipeline

MARGIN_S = 300.0
"""Seconds shown before the onset and after the end of an incident."""
SLOWEST = 14

_LABELS = {
    "req_running": "running", "req_waiting": "waiting requests", "kv_usage_ratio": "KV cache usage",
    "head_wait_seconds": "head wait", "ttft_p95_s": "TTFT P95", "arrivals_per_s": "arrivals",
    "gpu_sm_active_ratio": "SM active", "gpu_tensor_active_ratio": "tensor active",
    "gpu_dram_active_ratio": "DRAM active",
}  # fmt: skip
_UNITS = {
    "req_running": "requests", "req_waiting": "requests", "head_wait_seconds": "seconds", "ttft_p95_s": "seconds",
    "arrivals_per_s": "per_second",
}  # fmt: skip
_OPENS_EYES = {
    "head_wait_seconds": "only the engine's step ring says how long the head of the queue has waited",
    "ttft_p95_s": "neither request spans nor a TTFT histogram arrived (OTLP, or the engine's page)",
    "gpu_sm_active_ratio": "no GPU telemetry with SM, tensor or DRAM activity arrived "
    "(dcgm-exporter with profiling fields, or NVML on Hopper and later)",
    "arrivals_per_s": "no source counted arrivals",
}


class NoSuchIncidentError(Exception):
    """The record holds no incident of that id; the message names those that it holds."""


def collect(
    calls: Iterable[tuple[float, Sequence[Batch]]],
    config: Config,
    snapshot: bytes = b"",
    *,
    capsule: str = "",
    meta: Mapping[str, str | float] | None = None,
    incident_id: str | None = None,
) -> ReportData:
    """Replay `calls` and take the report out of them. `snapshot` is the pipeline's state before the first call.

    `incident_id` (or a unique beginning of it) chooses the incident; by default it is the verdict's first. Raises
    NoSuchIncidentError, and ValueError where there are no calls.
    """
    from ..pipeline import Pipeline

    pipeline = Pipeline.restore(config, snapshot) if snapshot else Pipeline(config)
    sampler = Sampler()
    for now, batches in calls:
        sampler.see(now, batches, pipeline.step(now, batches), pipeline)
    return compose(sampler, pipeline, config, capsule=capsule, meta=meta, incident_id=incident_id)


def compose(
    sampler: Sampler,
    pipeline: Pipeline,
    config: Config,
    *,
    capsule: str = "",
    meta: Mapping[str, str | float] | None = None,
    incident_id: str | None = None,
) -> ReportData:
    """The report of what a sampler has seen: `collect` without the replay, for one who stepped the pipeline himself."""
    if not len(sampler.at):
        raise ValueError("the record holds no calls, so there is nothing to report")
    verdict = pipeline.verdict()
    incident = choose(verdict, incident_id)
    subject, log = _engine(sampler, incident)
    at = np.array(sampler.at)
    from_at, until_at = _span(at, incident)
    series = _series(sampler, log, at, from_at, until_at)
    requests = log.spans.slowest(*_harm_span(incident, from_at, until_at), SLOWEST)
    if log.live is not None and log.live.at >= until_at - 15.0:
        told = {r.id for r in requests}
        requests += [r for r in in_flight(log.live) if r.id not in told]
        requests = sorted(requests, key=_waited_s, reverse=True)[:SLOWEST]
    return ReportData(
        verdict=verdict,
        incident=incident,
        from_at=from_at,
        until_at=until_at,
        engine=subject.engine,
        model=log.model or (str(incident.subject.get("model") or "") if incident else ""),
        ttft_p95_slo_s=config.slo_for(log.model).ttft_p95_s,
        series=series,
        gaps=_gaps(series),
        states=tuple(s for s in log.states if from_at <= s.at <= until_at),
        transitions=tuple(t for t in sampler.transitions if from_at <= t.at <= until_at),
        requests=tuple(requests),
        capsule=capsule,
        meta={str(k): v if isinstance(v, str) else f"{v:.15g}" for k, v in (meta or {}).items()},
        cut={what: n for what, n in {**sampler.cut, "spans": log.spans.cut}.items() if n},
        ticks=len(at),
    )


def _waited_s(request: RequestBar) -> float:
    """Seconds to the first token; so far, where there is none yet."""
    return request.end - request.start if request.ttft_s is None else request.ttft_s


def choose(verdict: Verdict, incident_id: str | None) -> Incident | None:
    """The incident to show: by id or its unique beginning, else the first (most severe). NoSuchIncidentError."""
    if incident_id is None:
        return verdict.incidents[0] if verdict.incidents else None
    found = [i for i in verdict.incidents if i.id.startswith(incident_id)]
    if len(found) != 1:
        known = ", ".join(i.id for i in verdict.incidents) or "none"
        problem = "no incident" if not found else "more than one incident"
        raise NoSuchIncidentError(f"{problem} {incident_id!r} in this record (it holds: {known})")
    return found[0]


def _engine(sampler: Sampler, incident: Incident | None) -> tuple[Subject, EngineLog]:
    """The engine that the report is about: the incident's, else the first that was seen."""
    if incident is not None:
        wanted = (incident.subject.get("engine"), incident.subject.get("rank") or 0)
        for subject, log in sampler.engines.items():
            if (subject.engine, subject.rank) == wanted:
                return subject, log
    for subject, log in sampler.engines.items():
        return subject, log
    return Subject(), EngineLog(0)


def _span(at: Floats, incident: Incident | None) -> tuple[float, float]:
    """What to show: the whole record, or the incident with five minutes on both sides where the record is longer."""
    first, last = float(at[0]), float(at[-1])
    if incident is None or last - first <= 1800.0:
        return first, last
    began = min(incident.onset_at, incident.trigger.at) if incident.trigger else incident.onset_at
    end = incident.resolved_at if incident.resolved_at is not None else last
    return max(first, began - MARGIN_S), min(last, end + MARGIN_S)


def _harm_span(incident: Incident | None, from_at: float, until_at: float) -> tuple[float, float]:
    if incident is None:
        return from_at, until_at
    return incident.onset_at, incident.resolved_at if incident.resolved_at is not None else until_at


def _series(sampler: Sampler, log: EngineLog, at: Floats, from_at: float, until_at: float) -> dict[str, Series]:
    """Every signal that was known at least once in the span, on the replay's own seconds."""
    raw: dict[str, tuple[Floats, str]] = {}
    for signal, levels in log.levels.items():
        raw[signal] = (_aligned(np.array(levels), log.began, len(at)), _told(sampler, signal))
    arrived, source = raw.pop("req_arrived_total")
    raw["arrivals_per_s"] = (_rate(at, arrived), source)
    raw["ttft_p95_s"] = _ttft(log, at)
    for signal in GPU_SIGNALS:
        mean_of = f", mean of {sampler.gpus} GPUs" if sampler.gpus > 1 else ""
        raw[signal] = (np.array(sampler.gpu_levels[signal]), _told(sampler, signal) + mean_of)
    inside = (at >= from_at) & (at <= until_at)
    return {
        signal: Series(signal, _LABELS[signal], _UNITS.get(signal, "ratio"), source, at[inside], values[inside])
        for signal, (values, source) in raw.items()
        if not np.all(np.isnan(values[inside]))
    }


def _told(sampler: Sampler, signal: str) -> str:
    return ", ".join(sorted(sampler.sources.get(signal, ())))


def _aligned(values: Floats, began: int, count: int) -> Floats:
    """Levels that begin at tick `began`, as long as the record."""
    out = np.full(count, math.nan)
    out[began : began + len(values)] = values
    return out


def _ttft(log: EngineLog, at: Floats) -> tuple[Floats, str]:
    """P95 over 30 s from spans, at the time of the first token; from the page's histogram where there are none."""
    if len(log.spans):
        first_at, took_s = log.spans.first_tokens()
        return trailing_p95(first_at, took_s, at), ", ".join(log.spans.sources)
    return _aligned(np.array(log.ttft.values), log.began, len(at)), f"histogram ({log.ttft.source})"


def _rate(at: Floats, total: Floats, over_s: float = 10.0) -> Floats:
    """Increase per second of a counter over the last ten seconds; NaN where the counter is unknown or has fallen."""
    back = np.searchsorted(at, at - over_s, side="left")
    delta, took = total - total[back], at - at[back]
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(took >= over_s / 2, delta / took, math.nan)
        return np.where(rate >= 0, rate, math.nan)


def _gaps(series: Mapping[str, Series]) -> tuple[Gap, ...]:
    """The plots that are not there, and why."""
    out = []
    for plot in PLOTS:
        if not any(signal in series for signal, _ in plot.curves):
            first = plot.curves[0][0]
            out.append(Gap(plot.title, _OPENS_EYES.get(first, f"no source told {first}")))
    return tuple(out)
