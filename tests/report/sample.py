"""Hand-made reports for the tests: the founding case as numbers, a healthy record, an undecided one, a hostile one."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gpuwatch.model import (
    Advice,
    Alternative,
    Blind,
    Change,
    Culprit,
    EngineState,
    Evidence,
    GpuState,
    Impact,
    Incident,
    LatencyState,
    MovedState,
    QueueState,
    RhythmState,
    RuledOut,
    SourceSeen,
    Subject,
    Symptom,
    Transition,
    Trigger,
    Verdict,
)
from gpuwatch.report.data import Gap, ReportData, RequestBar, Segment, Series

START = 1_764_000_000.0
LENGTH_S = 300
ONSET = START + 62
DETECTED = START + 88
ENGINE = Subject(engine="shim")


def incident() -> Incident:
    return Incident(
        id="6d0f3a51c2",
        rule="batch_thrashing",
        family="kv_admission",
        severity="page",
        confidence=0.93,
        subject={"engine": "shim", "rank": 0, "gpu": None, "model": "7b"},
        scope={"cluster": "eu-1", "pool": "chat"},
        status="open",
        onset_at=ONSET,
        detected_at=DETECTED,
        resolved_at=None,
        summary="The running batch drains and refills every 18 s because a long prompt at the head of a FIFO queue "
        "waits for KV while 31 requests that would fit wait behind it.",
        mechanism="head_admission",
        trigger=Trigger(
            "length_shift",
            START + 60,
            (Evidence("prompts_over_24k_ratio", 0.041, 0.004, "", 60.0, "requests"),),
        ),
        impact=Impact("TTFT P95 ≤ 1 s", 0.41, 0.992, 540.0, (0.31, 24.6), (3.9, 31.8), True),
        evidence=(
            Evidence("cycles", 5.0, 3.0, "≥", 120.0, "steps"),
            Evidence("cycle_period_s", 18.2, None, "", 120.0, "steps"),
            Evidence("running_swing_ratio", 0.78, 0.2, "≥", 120.0, "steps"),
            Evidence("req_waiting", 112.0, 8.0, ">", 60.0, "steps"),
            Evidence("kv_usage_ratio", 0.97, 0.9, "≥", 60.0, "steps"),
            Evidence("admission_stop_reason", "no blocks", None, "", 60.0, "steps"),
        ),
        ruled_out=(
            RuledOut("traffic_surge", "arrivals are flat", (Evidence("arrivals_per_s", 5.02, 5.04, "", 120, "steps"),)),
            RuledOut("engine_hang", "the last step ended 0.03 s ago"),
            RuledOut("gpu_throttling", "blind: no clock reasons on this page"),
        ),
        alternatives=(Alternative("long_context_kv_pressure", 0.22),),
        culprits=(Culprit("request", "a3f91c2e", 0.41, "48,000 prompt tokens, waits for 3,000 blocks"),),
        changes=(Change("image tag 1.4.2 → 1.4.3", START + 20),),
        action="limit_client",
        advice=(
            Advice(
                "Cap the prompt length at the gateway for this pool",
                "max_model_len at the router: 16384",
                "runtime",
                30,
                "4 % of the requests are refused",
                "gpuwatch_req_waiting falls below 10 within a minute",
                "remove the cap",
            ),
            Advice("Let requests that fit pass the blocked head", "--admission bypass", "restart", 60, "a cold cache"),
        ),
        not_now=("Do not restart the engine: the queue comes back and the prefix cache is lost.",),
        symptoms=(Symptom("head_of_line_blocking", START + 70, "a head of 48,000 tokens blocked 12 s"),),
        links={},
    )


def state_at(at: float) -> EngineState:
    sick = at >= ONSET
    kind = "recurrent" if at >= DETECTED else "steady"
    return EngineState(
        ENGINE,
        at,
        GpuState("bandwidth-bound" if not sick or math.sin(at / 3) > 0 else "idle"),
        RhythmState(kind, 5, 18.2, 0.4, 0.78) if sick else RhythmState("steady"),
        QueueState("growing" if sick else "empty", 100, 0.3, None),
        LatencyState("queue" if sick else "prefill", 0.93, 0.09),
        MovedState("shape", "prompts ≥ 24k 0.4 → 4.1 %") if sick else MovedState("nothing"),
        "serving",
        "bandwidth-bound · recurrent 18 s, swing 0.78 · queue +0.3/s · queue stage 93 % of TTFT (was 9 %) · "
        "shape moved: prompts ≥ 24k 0.4 → 4.1 %"
        if sick
        else "bandwidth-bound · steady · queue empty · prefill 71 % of TTFT · nothing moved",
    )


def series() -> dict[str, Series]:
    at = START + np.arange(LENGTH_S, dtype=float)
    sick = at >= ONSET
    phase = ((at - ONSET) % 18.0) / 18.0
    running = np.where(sick, 4 + 56 * np.abs(np.sin(np.pi * phase)), 34 + 4 * np.sin(at / 7))
    waiting = np.where(sick, np.minimum(112, 7 + (at - ONSET) * 0.6) + 6 * np.cos(np.pi * 2 * phase), 0.0)
    ttft = np.where(sick, 0.31 + np.minimum(24.3, (at - ONSET) * 0.13), 0.31 + 0.04 * np.sin(at / 5))
    active = np.where(sick, 0.15 + 0.7 * np.abs(np.sin(np.pi * phase)), 0.78)
    active[120:128] = np.nan
    rows = {
        "req_running": ("running", "requests", "steps", running),
        "req_waiting": ("waiting", "requests", "steps", waiting),
        "kv_usage_ratio": ("KV usage", "ratio", "steps", np.where(sick, 0.62 + 0.36 * phase, 0.55)),
        "ttft_p95_s": ("TTFT P95", "seconds", "spans", ttft),
        "gpu_sm_active_ratio": ("SM active", "ratio", "dcgm", active),
        "gpu_dram_active_ratio": ("DRAM active", "ratio", "dcgm", active * 0.8),
        "arrivals_per_s": ("arrivals", "per_second", "steps", 5 + 0.4 * np.sin(at / 4)),
    }
    return {k: Series(k, label, unit, source, at, values) for k, (label, unit, source, values) in rows.items()}


def requests() -> tuple[RequestBar, ...]:
    out = []
    for i in range(8):
        start = START + 70 + i * 24
        queue_end, prefill_end = start + 14 + 3 * i, start + 16 + 3.4 * i
        out.append(
            RequestBar(
                f"{0xA3F91C2E + i * 7919:08x}",
                start,
                prefill_end + 6,
                prefill_end - start,
                48_000.0 if i == 3 else 420.0,
                128.0,
                "stop",
                (
                    Segment("queue", start, queue_end),
                    Segment("prefill", queue_end, prefill_end),
                    Segment("decode", prefill_end, prefill_end + 6),
                ),
            )
        )
    late = START + 250
    open_one = Segment("queue", late, START + LENGTH_S, open=True)
    out.append(RequestBar("0badcafe", late, START + LENGTH_S, None, 380.0, None, "in flight", (open_one,)))
    return tuple(out)


def report() -> ReportData:
    """The founding case."""
    shown = incident()
    return ReportData(
        verdict=Verdict(
            1,
            (shown,),
            state_at(START + LENGTH_S),
            (Blind("gpu_throttling", ("gpu_throttled_ratio",), "run dcgm-exporter with clock reasons", "shim"),),
            (SourceSeen("shim", "steps", "engine/shim/0", 300, 0), SourceSeen("page", "engine", "shim", 150, 2, "500")),
        ),
        incident=shown,
        from_at=START,
        until_at=START + LENGTH_S,
        engine="shim",
        model="7b",
        ttft_p95_slo_s=1.0,
        series=series(),
        gaps=(Gap("Wait of the queue's head", "no source told head_wait_seconds (step ring)"),),
        states=tuple(state_at(START + i) for i in range(1, LENGTH_S + 1)),
        transitions=(
            Transition("opened", DETECTED, shown),
            Transition("worsened", DETECTED + 30, shown),
        ),
        requests=requests(),
        capsule="run.capsule",
        meta={"clock": "virtual", "device": "h100", "scenario": "batch_thrashing", "seed": "1"},
        cut={},
        ticks=LENGTH_S,
    )


def healthy() -> ReportData:
    """The first minute of the same: nothing was wrong."""
    data = report()
    short = {k: Series(s.signal, s.label, s.unit, s.source, s.at[:60], s.values[:60]) for k, s in data.series.items()}
    return msgspec.structs.replace(
        data,
        verdict=Verdict(1, (), data.states[50], data.verdict.blind, data.verdict.sources),
        incident=None,
        until_at=START + 60,
        series=short,
        states=data.states[:60],
        transitions=(),
        requests=(),
        ticks=60,
    )


def undecided() -> ReportData:
    """Harm without a mechanism: family sure, two alternatives."""
    shown = msgspec.structs.replace(
        incident(),
        rule="unknown",
        confidence=0.4,
        mechanism="",
        trigger=None,
        summary="TTFT P95 is 24.6 s, and page gauges at 15 s cannot tell a drained batch from a blocked head.",
        alternatives=(Alternative("batch_thrashing", 0.4), Alternative("head_of_line_blocking", 0.35)),
        advice=(),
        action="observe",
    )
    data = report()
    return msgspec.structs.replace(
        data, incident=shown, verdict=msgspec.structs.replace(data.verdict, incidents=(shown,))
    )


HOSTILE = "</title></svg><script>window.pwned=1</script><img src=http://evil.test/x onerror=window.pwned=1>`|[a](http://evil.test)"


def hostile() -> ReportData:
    """Every string that an engine, a client or a change announcement can supply is an attack."""
    shown = msgspec.structs.replace(
        incident(),
        subject={"engine": HOSTILE, "rank": 0, "gpu": HOSTILE, "model": HOSTILE},
        scope={"pool": HOSTILE},
        summary=HOSTILE,
        mechanism=HOSTILE,
        evidence=(Evidence(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 60.0, HOSTILE),),
        ruled_out=(RuledOut(HOSTILE, HOSTILE, (Evidence(HOSTILE, 1.0, 2.0, "<", 1.0, HOSTILE),)),),
        culprits=(Culprit("tenant", HOSTILE, 0.5, HOSTILE),),
        changes=(Change(HOSTILE, ONSET),),
        symptoms=(Symptom(HOSTILE, ONSET, HOSTILE),),
        not_now=(HOSTILE,),
        links={HOSTILE: "javascript:window.pwned=1"},
    )
    data = report()
    nasty = msgspec.structs.replace(
        data.states[0], line=HOSTILE, latency=LatencyState(HOSTILE, 1.0, 0.0), lifecycle="loading"
    )
    bar = RequestBar(HOSTILE, ONSET, ONSET + 50, None, None, None, HOSTILE, (Segment(HOSTILE, ONSET, ONSET + 50),))
    rows = {k: msgspec.structs.replace(s, source=HOSTILE, label=HOSTILE) for k, s in data.series.items()}
    return msgspec.structs.replace(
        data,
        verdict=Verdict(
            1,
            (shown,),
            nasty,
            (Blind(HOSTILE, (HOSTILE,), HOSTILE, HOSTILE),),
            (SourceSeen(HOSTILE, HOSTILE, HOSTILE, 1, 1, HOSTILE),),
        ),
        incident=shown,
        engine=HOSTILE,
        model=HOSTILE,
        series=rows,
        gaps=(Gap(HOSTILE, HOSTILE),),
        states=(nasty, *data.states[1:100]),
        requests=(bar,),
        capsule=HOSTILE,
        meta={HOSTILE: HOSTILE},
        cut={HOSTILE: 1},
    )
