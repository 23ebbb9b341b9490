"""The agent's own `/metrics` page: derived signals, open incidents, and the agent's health, in Prometheus text format.

Bounded: at most `metric_series` series an engine and `metric_series_per_gpu` a GPU, the rest is cut and counted. No
request, incident or pid is ever a label. A value that is not known is left out: missing is not zero. Engine-supplied
label values are escaped and cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..catalog import CATALOG
from ..config import Bounds, Config
from ..model import EngineState, Incident, Subject

ENGINE_SIGNALS = (
    "req_running", "req_waiting", "req_waiting_capacity", "req_waiting_deferred", "max_num_seqs", "waiting_fit",
    "head_wait_seconds", "head_need_blocks", "admission_stop_reason", "req_arrived_total", "req_finished_total",
    "req_aborted_total", "req_rejected_total", "req_preempted_total", "kv_usage_ratio", "kv_capacity_tokens",
    "kv_cached_ratio", "kv_reserved_unused_ratio", "kv_internal_fragmentation_ratio", "prefix_hit_ratio",
    "prompt_tokens_total", "generated_tokens_total", "recomputed_tokens_total", "step_seconds",
    "step_prefill_tokens", "step_decode_tokens", "step_longest_prefill_tokens", "steps_total", "scrape_seconds",
    "process_cpu_ratio", "process_front_cpu_ratio", "process_run_wait_ratio", "process_memory_bytes", "process_threads",
    "cgroup_cpu_ratio", "cgroup_cpu_limit_ratio", "cgroup_cpu_throttled_ratio", "cgroup_memory_bytes",
    "cgroup_memory_limit_bytes",
)  # fmt: skip
GPU_SIGNALS = (
    "gpu_sm_active_ratio", "gpu_sm_occupancy_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio",
    "gpu_gr_engine_active_ratio", "gpu_util_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes",
    "gpu_sm_clock_hertz", "gpu_sm_clock_max_hertz", "gpu_power_watts", "gpu_power_limit_watts",
    "gpu_temperature_celsius", "gpu_throttled_ratio", "gpu_xid_total",
)  # fmt: skip
HOST_SIGNALS = (
    "host_cpu_ratio", "host_cpu_steal_ratio", "host_load_ratio", "host_cpu_pressure_ratio", "host_memory_used_ratio",
    "host_memory_pressure_ratio", "host_io_pressure_ratio", "host_disk_busy_ratio", "host_net_retransmit_ratio",
)  # fmt: skip

Labels = tuple[tuple[str, str], ...]


class EngineFigures(msgspec.Struct, frozen=True):
    """What is computed for one engine beside its state: latencies of the last minute in seconds, NaN where not known."""

    up: bool | None = None
    ttft_p50_s: float = math.nan
    ttft_p95_s: float = math.nan
    e2e_p95_s: float = math.nan
    ttft_shares: Mapping[str, float] = {}
    slo_requests: Mapping[str, float] = {}
    slo_good: Mapping[str, float] = {}
    blind: Mapping[str, bool] = {}


class Health(msgspec.Struct, frozen=True):
    """The agent about itself. Mappings are counts by source, by what was dropped, and by (sink, what happened)."""

    version: str
    cpu_seconds: float
    resident_bytes: float
    tick_seconds: float
    started_at: float
    journal_ok: bool
    store_ok: bool
    journal_bytes: float
    ticks: float
    polls: Mapping[str, float] = {}
    poll_errors: Mapping[str, float] = {}
    dropped: Mapping[str, float] = {}
    sinks: Mapping[tuple[str, str], float] = {}
    sinks_waiting: Mapping[str, float] = {}


class View(msgspec.Struct, frozen=True):
    """All that one page shows, as of the last tick."""

    levels: Mapping[Subject, Mapping[str, float]]
    states: Sequence[EngineState]
    figures: Mapping[Subject, EngineFigures]
    open: Sequence[Incident]
    health: Health


class Page:
    """Collects series by metric and renders them. `cut` counts what the limits refused."""

    def __init__(self, scope: Mapping[str, str], bounds: Bounds, limit: int) -> None:
        self.cut = 0
        self._scope = tuple(sorted((key, value) for key, value in scope.items() if value))
        self._label_chars = bounds.label_chars
        self._left = limit
        self._metrics: dict[str, tuple[str, str, dict[Labels, float]]] = {}

    def add(
        self,
        name: str,
        kind: str,
        help: str,
        value: float | None,
        labels: Mapping[str, object],
        *,
        free: bool = False,
    ) -> None:
        """One series of `gpuwatch_<name>`; None and NaN are left out. `free`: the agent's own, outside the limit."""
        if value is None or math.isnan(value):
            return
        if not free and self._left <= 0:
            self.cut += 1
            return
        self._left -= not free
        own = tuple((key, self._text(text)) for key, text in labels.items())
        series = self._metrics.setdefault(f"gpuwatch_{name}", (kind, help, {}))[2]
        key = (*own, *self._scope_beside(own))
        series[key] = value if key not in series or kind == "counter" else max(value, series[key])

    def render(self) -> str:
        """The page."""
        lines: list[str] = []
        for name, (kind, about, series) in sorted(self._metrics.items()):
            lines += (f"# HELP {name} {_help(about)}", f"# TYPE {name} {kind}")
            lines += (f"{name}{_braces(labels)} {_number(value)}" for labels, value in series.items())
        return "\n".join(lines) + "\n"

    def _text(self, value: object) -> str:
        text = str(value)[: self._label_chars]
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    def _scope_beside(self, own: Labels) -> Labels:
        taken = {key for key, _ in own}
        return tuple((key, self._text(value)) for key, value in self._scope if key not in taken)


def render(view: View, config: Config) -> str:
    """The whole page."""
    gpus = sum(bool(subject.gpu) for subject in view.levels)
    engines = max(1, sum(bool(subject.engine) for subject in view.levels))
    bounds = config.bounds
    page = Page(config.scope, bounds, bounds.metric_series * engines + bounds.metric_series_per_gpu * gpus)
    _incidents(page, view.open, config.scope.get("pool", ""))
    for state in view.states:
        _state(page, state)
    for subject, figures in view.figures.items():
        _figures(page, subject, figures)
    for subject, levels in view.levels.items():
        _levels(page, subject, levels)
    _health(page, view.health)
    return page.render()


def _incidents(page: Page, incidents: Iterable[Incident], pool: str) -> None:
    for i in incidents:
        engine = i.subject.get("engine") or ""
        labels = {"pool": pool, "engine": engine, "family": i.family, "rule": i.rule, "severity": i.severity}
        page.add("incident_open", "gauge", "1 while an incident is open", 1.0, labels)
        labels = {"engine": engine, "rule": i.rule}
        page.add("incident_onset_timestamp_seconds", "gauge", "When an open incident began", i.onset_at, labels)
        page.add(
            "incident_detected_timestamp_seconds", "gauge", "When an open incident was detected", i.detected_at, labels
        )


def _state(page: Page, state: EngineState) -> None:
    labels = _engine(state.subject)
    answers = {
        "gpu": state.gpu.mode,
        "rhythm": state.rhythm.kind,
        "queue": state.queue.trend,
        "stage": state.latency.stage,
        "moved": state.moved.what,
        "lifecycle": state.lifecycle,
    }
    page.add("state_info", "gauge", "The answers to the five questions, as labels", 1.0, labels | answers)
    rhythm, queue = state.rhythm, state.queue
    page.add("rhythm_period_seconds", "gauge", "Median period of the drain-refill cycles", rhythm.period_s, labels)
    page.add("rhythm_swing_ratio", "gauge", "Swing of the running set in a cycle", rhythm.swing_ratio, labels)
    if rhythm.kind != "unknown":
        page.add("rhythm_cycles", "gauge", "Drain-refill cycles in the window", rhythm.cycles, labels)
    page.add("queue_rate_per_second", "gauge", "Growth of the queue in requests per second", queue.rate_per_s, labels)
    page.add("queue_until_seconds", "gauge", "Time until the SLO or the KV pool is gone", queue.until_s, labels)


def _figures(page: Page, subject: Subject, f: EngineFigures) -> None:
    labels = _engine(subject)
    up = None if f.up is None else float(f.up)
    page.add("scrape_up", "gauge", "1 while the engine's page answers", up, labels)
    page.add("ttft_p50_seconds", "gauge", "Time to first token, P50 of the last minute", f.ttft_p50_s, labels)
    page.add("ttft_p95_seconds", "gauge", "Time to first token, P95 of the last minute", f.ttft_p95_s, labels)
    page.add("e2e_p95_seconds", "gauge", "Whole latency, P95 of the last minute", f.e2e_p95_s, labels)
    for stage, share in f.ttft_shares.items():
        about = "Share of the time to first token by stage"
        page.add("ttft_share_ratio", "gauge", about, share, labels | {"stage": stage})
    for objective, count in f.slo_requests.items():
        judged = labels | {"objective": objective}
        page.add("slo_requests_total", "counter", "Requests judged against an objective", count, judged)
        page.add("slo_good_total", "counter", "Requests that met an objective", f.slo_good.get(objective, 0.0), judged)
    for rule, blind in f.blind.items():
        about = "1 while a rule cannot judge an engine"
        page.add("rule_blind", "gauge", about, float(blind), labels | {"rule": rule})


def _levels(page: Page, subject: Subject, levels: Mapping[str, float]) -> None:
    if subject.gpu:
        labels: dict[str, object] = {"gpu": subject.gpu}
    elif subject.host:
        labels = {"host": subject.host}
    else:
        labels = _engine(subject)
        head = levels.get("head_wait_seconds")
        page.add("queue_age_seconds", "gauge", "How long the head of the queue has waited", head, labels)
    for name, value in levels.items():
        signal = CATALOG[name]
        page.add(name, signal.kind, f"{signal.help} ({signal.unit})", value, labels)


def _engine(subject: Subject) -> dict[str, object]:
    return {"engine": subject.engine, "rank": subject.rank}


def _health(page: Page, h: Health) -> None:
    def own(name: str, kind: str, help: str, value: float, **labels: object) -> None:
        page.add(f"agent_{name}", kind, help, value, labels, free=True)

    own("build_info", "gauge", "The agent's version", 1.0, version=h.version)
    own("up", "gauge", "1 while the agent ticks", 1.0)
    own("start_time_seconds", "gauge", "Unix time at which the agent started", h.started_at)
    own("cpu_seconds_total", "counter", "CPU time of the agent", h.cpu_seconds)
    own("resident_memory_bytes", "gauge", "Resident memory of the agent", h.resident_bytes)
    own("tick_seconds", "gauge", "How long the last tick took, without the polls", h.tick_seconds)
    own("ticks_total", "counter", "Ticks judged", h.ticks)
    own("journal_ok", "gauge", "1 while the journal can be written", float(h.journal_ok))
    own("store_ok", "gauge", "1 while incidents can be stored", float(h.store_ok))
    own("journal_bytes_total", "counter", "Bytes written to the journal", h.journal_bytes)
    for source, count in h.polls.items():
        own("polls_total", "counter", "Polls by source", count, source=source)
        own("poll_errors_total", "counter", "Failed polls by source", h.poll_errors.get(source, 0.0), source=source)
    for what, count in h.dropped.items():
        own("dropped_total", "counter", "What was cut or lost, by what it was", count, what=what)
    own("dropped_total", "counter", "What was cut or lost, by what it was", page.cut, what="metric_series")
    for (sink, what), count in h.sinks.items():
        own(f"sink_{what}_total", "counter", f"Transitions {what} by sink", count, sink=sink)
    for sink, count in h.sinks_waiting.items():
        own("sink_waiting", "gauge", "Transitions that wait for a sink", count, sink=sink)


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.10g}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
