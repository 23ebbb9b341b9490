"""Which plots a report has, in which order, and over which time axis. A table: signals → one chart each."""

from __future__ import annotations

import msgspec
import numpy as np

from .chart import Chart, Line, Mark, TimeFrame
from .data import ReportData
from .words import duration

_COLOURS = ("a", "b", "c")


class Plot(msgspec.Struct, frozen=True):
    """One row of the table: the curves (signal, label) of one chart, and its ceiling where a ratio has one."""

    title: str
    unit: str
    curves: tuple[tuple[str, str], ...]
    ceiling: float | None = None
    filled: bool = False


PLOTS: tuple[Plot, ...] = (
    Plot("Running and waiting requests", "requests", (("req_running", "running"), ("req_waiting", "waiting"))),
    Plot("KV cache in use", "ratio", (("kv_usage_ratio", "in use"),), ceiling=1.0, filled=True),
    Plot("Time to first token, P95 over 30 s", "seconds", (("ttft_p95_s", "TTFT P95"),), filled=True),
    Plot("Wait of the queue's head", "seconds", (("head_wait_seconds", "head wait"),), filled=True),
    Plot(
        "GPU activity",
        "ratio",
        (("gpu_sm_active_ratio", "SM"), ("gpu_tensor_active_ratio", "tensor"), ("gpu_dram_active_ratio", "DRAM")),
        ceiling=1.0,
    ),
    Plot("Arrivals, mean over 10 s", "per_second", (("arrivals_per_s", "requests"),), filled=True),
)
"""The evidence plots in the order of the page: queue and waits first, the device after, demand last."""


def charts(data: ReportData) -> tuple[Chart, ...]:
    """The charts that have data."""
    out = []
    for plot in PLOTS:
        known = [(s, label) for s, label in plot.curves if _has_data(data, s)]
        if not known:
            continue
        lines = tuple(
            Line(label, _COLOURS[i], data.series[s].at, data.series[s].values, plot.filled)
            for i, (s, label) in enumerate(known)
        )
        sources = sorted({data.series[s].source for s, _ in known if data.series[s].source})
        note = f"Source: {', '.join(sources)}." if sources else ""
        limit = data.ttft_p95_slo_s if plot.unit == "seconds" else None
        label = f"objective {duration(limit)}" if limit is not None else ""
        out.append(Chart(plot.title, plot.unit, lines, limit, label, plot.ceiling, note))
    return tuple(out)


def _has_data(data: ReportData, signal: str) -> bool:
    series = data.series.get(signal)
    return series is not None and bool(np.any(~np.isnan(series.values)))


def time_frame(data: ReportData) -> TimeFrame:
    """The shared time axis: the whole record, the incident shaded, onset and detection marked."""
    incident = data.incident
    if incident is None:
        return TimeFrame(data.from_at, data.until_at)
    end = incident.resolved_at if incident.resolved_at is not None else data.until_at
    return TimeFrame(
        data.from_at,
        data.until_at,
        ((incident.onset_at, end),),
        (Mark(incident.onset_at, "onset", before=True), Mark(incident.detected_at, "detected")),
    )
