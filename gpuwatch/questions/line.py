"""The five answers as one line, the same everywhere."""

from __future__ import annotations

from ..model import GpuState, LatencyState, Lifecycle, MovedState, QueueState, RhythmState


def line(
    gpu: GpuState, rhythm: RhythmState, queue: QueueState, latency: LatencyState, moved: MovedState, life: Lifecycle
) -> str:
    """Like `bandwidth-bound · recurrent 18 s, swing 0.78 · queue +0.3/s · queue stage 93 % of TTFT (was 9 %) · …`."""
    parts: list[str] = [] if life == "serving" else [life]
    parts += [f"GPU {gpu.mode}" if gpu.mode == "unknown" else gpu.mode, _rhythm(rhythm), _queue(queue)]
    parts += [_latency(latency), _moved(moved)]
    return " · ".join(p for p in parts if p)


def _rhythm(r: RhythmState) -> str:
    if r.kind in ("recurrent", "periodic") and r.period_s is not None:
        return f"{r.kind} {r.period_s:.0f} s, swing {r.swing_ratio or 0:.2f}"
    return "rhythm unknown" if r.kind == "unknown" else r.kind


def _queue(q: QueueState) -> str:
    if q.trend == "unknown":
        return "queue unknown"
    if q.trend == "empty":
        return "no queue"
    rate = f" {q.rate_per_s:+.1f}/s" if q.rate_per_s is not None and q.trend != "standing" else ""
    return f"queue {q.waiting or 0:.0f} {q.trend}{rate}"


def _latency(x: LatencyState) -> str:
    if x.ttft_share is None:
        return ""
    was = f" (was {x.baseline_share:.0%})" if x.baseline_share is not None else ""
    return f"{x.stage} {x.ttft_share:.0%} of TTFT{was}"


def _moved(m: MovedState) -> str:
    if m.what in ("nothing", "unknown"):
        return "nothing moved" if m.what == "nothing" else ""
    return f"{m.what} moved: {m.by}" if m.by else f"{m.what} moved"
