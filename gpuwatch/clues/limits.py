"""What a piece of evidence cannot tell: said beside the verdict, so that silence is not taken for health."""

from __future__ import annotations

from .moments import moments, progress
from .sighting import Sighting

RHYTHM_S = 90.0
BASELINE_S = 900.0


def what_it_cannot_tell(s: Sighting) -> list[str]:
    """One sentence each, the gravest first; empty where nothing at all was seen."""
    if not s.calls:
        return []
    out: list[str] = []
    looks = max((e.count for e in s.engines), default=0)
    if s.engines and not looks:
        spans = any(e.requests is not None for e in s.engines)
        out.append(
            "No page or log of an engine: what is said rests on requests that finished; those that never did are in no span."
            if spans
            else "No reading of an engine: what is said rests on messages alone."
        )
    if looks == 1:
        out.append(
            "One look: no rates, no growth, no order of events; whether tokens flow is not known unless a line says a rate."
        )
    elif 1 < looks < 6 or 0 < s.span_s < RHYTHM_S:
        out.append(f"{looks} looks over {s.span_s:.0f} s: no rhythm, and a short episode looks like a lasting one.")
    if looks and s.span_s < BASELINE_S:
        out.append("No baseline: what is usual here is not known, so nothing is called slow against itself.")
    for engine in s.engines:
        seen = moments(engine)
        if seen and progress(engine, seen, s.last_at).says == "unknown" and looks > 1:
            out.append(f"{engine.subject.engine}: no counter that must move, so a hang and a busy engine look alike.")
            break
    if s.engines and "steps" not in s.sources:
        out.append(
            "Nothing shows single requests: not the head of the queue, its size or its age, nor who holds the cache."
        )
    if s.engines and not any("ttft_seconds" in e.histograms for e in s.engines) and "spans" not in s.roles:
        out.append("Latency was not seen: what users felt is inferred, not measured.")
    if s.engines and not s.gpus:
        out.append("No device was seen: throttling, faults, neighbours and idle gaps cannot be told.")
    out += _instances(s)
    if s.gpus and not s.engines:
        out.append("No engine was seen: whether the devices' work is useful cannot be told.")
    if s.engines and not any("cgroup_cpu_throttled_ratio" in x.tracks for x in (*s.engines, *s.hosts)):
        out.append("CPU quota and throttling of the container were not seen.")
    return out


def _instances(s: Sighting) -> list[str]:
    """MIG instances: what their utilisation cannot say, and what is read in its place."""
    cut = [g for g in s.gpus if g.facts.get("mig_profile")]
    if not cut:
        return []
    active = [t.greatest for g in cut if (t := g.track("gpu_gr_engine_active_ratio")) is not None and t.count]
    instead = f"; engine activity is read instead (up to {max(active):.0%})" if active else ""
    return [
        f"GPU utilisation is not measured on a MIG instance ({cut[0].facts['mig_profile']}){instead}: 0 is not idle."
    ]
