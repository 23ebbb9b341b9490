"""*Triage*: which incident is open, what the five questions say, and the queue and waits that users feel.

Read from the top: verdict, questions, queue and waits, rhythm of the batch, throughput, the device's activity. GPU
utilisation stands last, because it is no evidence of health.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as dm

from .grid import (
    BLUE,
    ENGINE,
    GREEN,
    ORANGE,
    POOL,
    RED,
    answers,
    caption,
    lines,
    number,
    rows,
    section,
    source,
)  # fmt: skip

TTFT_P95_S = 1.0
"""The default objective of `[slo]`: the dashed line of the wait panels."""
_RATE = "[$__rate_interval]"
_ALIVE = f"0 * count(gpuwatch_agent_up{{{POOL}}} == 1)"


def build() -> dm.Dashboard:
    """The dashboard."""
    board = (
        dashboard.Dashboard("gpuwatch: triage")
        .uid("gpuwatch-triage")
        .description("Why is this inference service slow, and what does it rest on?")
        .tags(["gpuwatch", "llm", "inference"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(dm.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("pool", "label_values(gpuwatch_agent_up, pool)"))
        .with_variable(_choice("engine", f"label_values(gpuwatch_state_info{{{POOL}}}, engine)"))
        .annotation(_incidents())
    )
    for part in (_verdict, _questions, _queue_and_waits, _rhythm, _throughput, _device):
        board = part(board)
    return board.build()


def _choice(name: str, query: str) -> dashboard.QueryVariable:
    """All by default, and all means also those without the label."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(source())
        .query(query)
        .refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dm.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dm.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _incidents() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Incidents")
        .datasource(source())
        .enable(True)
        .icon_color(RED)
        .expr(f"gpuwatch_incident_open{{{ENGINE}}}")
        .title_format("{{rule}}")
        .text_format("{{severity}} on {{engine}}")
        .tag_keys("family,severity")
    )


def _verdict(board: dashboard.Dashboard) -> dashboard.Dashboard:
    good, judged = (f"sum(increase(gpuwatch_slo_{what}_total{{{ENGINE}}}[5m]))" for what in ("good", "requests"))
    return (
        board.with_row(section("Verdict"))
        .with_panel(
            number(
                "Open incidents",
                "Zero is only said while an agent is up.",
                f"count(gpuwatch_incident_open{{{ENGINE}}}) or {_ALIVE}",
                "short",
                ((None, GREEN), (1, ORANGE)),
            )
        )
        .with_panel(
            number(
                "Pages",
                "Open incidents that wake someone.",
                f'count(gpuwatch_incident_open{{{ENGINE},severity="page"}}) or {_ALIVE}',
                "short",
                ((None, GREEN), (1, RED)),
            )
        )
        .with_panel(
            number(
                "Requests in time, 5 min",
                "Share of requests within the TTFT objective.",
                f"{good} / {judged}",
                "percentunit",
                ((None, RED), (0.95, GREEN)),
            )
        )
        .with_panel(
            number(
                "Blind rules",
                "Rules that cannot judge an engine for want of a signal. Not seen is not healthy.",
                f"sum(gpuwatch_rule_blind{{{ENGINE}}})",
                "short",
                ((None, BLUE),),
            )
        )
        .with_panel(
            rows(
                "Open incidents",
                "The class is the mechanism; the runbook of that name says what to do.",
                f"gpuwatch_incident_open{{{ENGINE}}}",
                ("severity", "rule", "family", "engine", "pool"),
            )
        )
        .with_panel(
            rows(
                "The five questions, now",
                "How is the GPU busy · steady or recurrent · the queue · where TTFT goes · what moved first.",
                f"gpuwatch_state_info{{{ENGINE}}}",
                ("engine", "lifecycle", "gpu", "rhythm", "queue", "stage", "moved"),
            )
        )
    )


def _questions(board: dashboard.Dashboard) -> dashboard.Dashboard:
    asked = (("gpu", "GPU"), ("rhythm", "rhythm"), ("queue", "queue"), ("stage", "TTFT goes to"), ("moved", "moved"))
    queries = [
        (f"max by (engine, {label}) (gpuwatch_state_info{{{ENGINE}}})", f"{words}: {{{{{label}}}}} ({{{{engine}}}})")
        for label, words in asked
    ]
    return board.with_panel(
        answers("The five questions over time", "A row for each answer that occurred; filled while it held.", queries)
    )


def _queue_and_waits(board: dashboard.Dashboard) -> dashboard.Dashboard:
    engine = "{{engine}}"
    return (
        board.with_row(section("Queue and waits: what users feel"))
        .with_panel(
            lines(
                "Waiting requests",
                "Accepted and without KV, preempted ones included.",
                [(f"gpuwatch_req_waiting{{{ENGINE}}}", engine)],
                "short",
            )
        )
        .with_panel(
            lines(
                "Wait of the queue's head",
                "Rises at once when admission stops; needs the step ring.",
                [(f"gpuwatch_queue_age_seconds{{{ENGINE}}}", engine)],
                "s",
                limit=TTFT_P95_S,
            )
        )
        .with_panel(
            lines(
                "Time to first token, P50 and P95 of the last minute",
                "The dashed line is the default objective of [slo]: TTFT P95 of 1 s.",
                [
                    (f"gpuwatch_ttft_p95_seconds{{{ENGINE}}}", f"P95 {engine}"),
                    (f"gpuwatch_ttft_p50_seconds{{{ENGINE}}}", f"P50 {engine}"),
                ],
                "s",
                limit=TTFT_P95_S,
            )
        )
        .with_panel(
            lines(
                "Where the time to first token goes",
                "Shares by stage. A queue share that moved from a few per cent to most of it is the queue's fault.",
                [(f"avg by (stage) (gpuwatch_ttft_share_ratio{{{ENGINE}}})", "{{stage}}")],
                "percentunit",
                top=1.0,
                stacked=True,
            )
        )
    )


def _rhythm(board: dashboard.Dashboard) -> dashboard.Dashboard:
    engine = "{{engine}}"
    return (
        board.with_row(section("Rhythm: does the batch drain and refill?"))
        .with_panel(
            lines(
                "Running requests",
                "Requests that hold KV. A batch that drains while others wait is the mark of a blocked admission.",
                [(f"gpuwatch_req_running{{{ENGINE}}}", engine)],
                "short",
                width=8,
            )
        )
        .with_panel(
            lines(
                "KV cache in use",
                "Blocks that a new request cannot have; evictable prefixes count as free.",
                [(f"gpuwatch_kv_usage_ratio{{{ENGINE}}}", engine)],
                "percentunit",
                top=1.0,
                width=8,
            )
        )
        .with_panel(
            lines(
                "Drain–refill cycles in the window",
                "Counted by the agent at the step's pace: a scrape every 15 s cannot see them.",
                [(f"gpuwatch_rhythm_cycles{{{ENGINE}}}", engine)],
                "short",
                width=8,
            )
        )
    )


def _throughput(board: dashboard.Dashboard) -> dashboard.Dashboard:
    def rate(name: str) -> str:
        return f"sum(rate(gpuwatch_{name}{{{ENGINE}}}{_RATE}))"

    return (
        board.with_row(section("Demand and throughput"))
        .with_panel(
            lines(
                "Requests",
                "Arrived more than finished for long: the queue is the difference.",
                [
                    (rate("req_arrived_total"), "arrived"),
                    (rate("req_finished_total"), "finished"),
                    (rate("req_preempted_total"), "preempted"),
                ],
                "reqps",
            )
        )
        .with_panel(
            lines(
                "Tokens",
                "Recomputed tokens are work done twice, after preemptions.",
                [
                    (rate("generated_tokens_total"), "generated"),
                    (rate("prompt_tokens_total"), "prompt"),
                    (rate("recomputed_tokens_total"), "recomputed"),
                ],
                "short",
            )
        )
    )


def _device(board: dashboard.Dashboard) -> dashboard.Dashboard:
    def mean(signal: str) -> str:
        return f"avg(gpuwatch_{signal}{{{POOL}}})"

    return (
        board.with_row(section("Device: what the GPU really does"))
        .with_panel(
            lines(
                "SM, tensor and memory activity",
                "Mean over the pool's GPUs. Swings in step with the batch are drained slots.",
                [
                    (mean("gpu_sm_active_ratio"), "SM active"),
                    (mean("gpu_tensor_active_ratio"), "tensor active"),
                    (mean("gpu_dram_active_ratio"), "DRAM active"),
                ],
                "percentunit",
                top=1.0,
            )
        )
        .with_panel(
            lines(
                "SM clock",
                "A clock below its usual level is a throttle or a power limit.",
                [(f"gpuwatch_gpu_sm_clock_hertz{{{POOL}}}", "{{gpu}}")],
                "hertz",
            )
        )
        .with_panel(
            lines(
                "GPU utilisation (no evidence of health)",
                "Share of time with at least one kernel resident.",
                [(f"gpuwatch_gpu_util_ratio{{{POOL}}}", "{{gpu}}")],
                "percentunit",
                top=1.0,
            )
        )
        .with_panel(
            caption(
                "**Do not read health from this number.** It says that *some* kernel was resident, not that the device "
                "did useful work: a hung step, a batch of one and a full batch all show 100 %. It stands last so that "
                "it is compared with the activities above it, and with the queue."
            )
        )
    )
