"""The agent's page with everything on it: every metric that a query may ask for, from the real exporter."""

import re

import msgspec

from gpuwatch.config import Config
from gpuwatch.model import EngineState, Incident, Subject
from gpuwatch.server.metrics_page import ENGINE_SIGNALS, GPU_SIGNALS, HOST_SIGNALS, EngineFigures, Health, View, render

ENGINE = Subject(engine="vllm-0")

STATE = {
    "subject": {"engine": "vllm-0"},
    "at": 1_764_000_000.0,
    "gpu": {"mode": "bandwidth-bound"},
    "rhythm": {"kind": "recurrent", "cycles": 4, "period_s": 18.0, "period_cv": 0.3, "swing_ratio": 0.78},
    "queue": {"trend": "growing", "waiting": 12.0, "rate_per_s": 0.3, "until_s": 40.0},
    "latency": {"stage": "queue", "ttft_share": 0.93, "baseline_share": 0.09},
    "moved": {"what": "shape"},
    "lifecycle": "serving",
    "line": "",
}
INCIDENT = {
    "id": "0",
    "rule": "batch_thrashing",
    "family": "kv_admission",
    "severity": "page",
    "confidence": 0.9,
    "subject": {"engine": "vllm-0", "rank": 0},
    "status": "open",
    "onset_at": 1_763_999_900.0,
    "detected_at": 1_763_999_940.0,
    "impact": {"objective": "ttft_p95"},
    "action": "limit_client",
    **dict.fromkeys(("resolved_at", "trigger")),
    **dict.fromkeys(("summary", "mechanism"), ""),
    **{name: {} for name in ("scope", "links")},
    **{
        name: []
        for name in ("evidence", "ruled_out", "alternatives", "culprits", "changes", "advice", "not_now", "symptoms")
    },
}
HEALTH = Health(
    version="0",
    cpu_seconds=1.0,
    resident_bytes=1.0,
    tick_seconds=0.001,
    started_at=1.0,
    journal_ok=True,
    store_ok=True,
    journal_bytes=1.0,
    ticks=1.0,
    polls={"engine": 1.0},
    dropped={"spans": 1.0},
    sinks={("webhook", what): 1.0 for what in ("sent", "retries", "rejected", "dropped", "replaced")},
    sinks_waiting={"webhook": 0.0},
)
FIGURES = EngineFigures(
    up=True,
    ttft_p50_s=0.1,
    ttft_p95_s=0.9,
    e2e_p95_s=5.0,
    ttft_shares={"queue": 0.9},
    slo_requests={"ttft_p95": 10.0},
    slo_good={"ttft_p95": 9.0},
    blind={"overload": False},
)


def full_page() -> str:
    """One engine, one GPU and one host, nothing missing, one open incident."""
    levels = {
        ENGINE: dict.fromkeys(ENGINE_SIGNALS, 1.0),
        Subject(gpu="GPU-0"): dict.fromkeys(GPU_SIGNALS, 1.0),
        Subject(host="node7"): dict.fromkeys(HOST_SIGNALS, 1.0),
    }
    view = View(
        levels=levels,
        states=[msgspec.convert(STATE, EngineState)],
        figures={ENGINE: FIGURES},
        open=[msgspec.convert(INCIDENT, Incident)],
        health=HEALTH,
    )
    return render(view, Config(scope={"cluster": "eu", "namespace": "llm", "pool": "chat", "team": "a"}))


def exported_names() -> set[str]:
    """The names on it."""
    return set(re.findall(r"^# TYPE (\S+) ", full_page(), re.MULTILINE))
