"""Goodput under overload, with and without protection: `python -m engine_shim.studies.overload`.

The same demand at multiples of what the engine can serve. *Goodput* is the number of requests per second whose first
token comes within the objective, averaged over the time after the warm-up; what was refused or came late counts nothing.
The expectation is that of every queue: without a limit, waits grow for as long as the overload lasts, soon every first
token is late, and goodput falls to nothing although the device is busy. With a limit that follows the measured service
rate, what is let in is served in time, and goodput stays at what it is at full load. A fixed limit does the same for the
demand that it was tuned for, and fails when answers become four times as long (the last rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..demand.capacity import capacity_per_s
from ..devices.profile_file import device_named
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from .played import Played, play_load, streams_of

OBJECTIVE_S = 2.0  # for the first token
ENGINE: dict[str, Any] = {"model": "7b", "max_num_seqs": 48, "kv_pool_tokens": 120_000}
LOAD: dict[str, Any] = {
    "prompt_tokens": {"lognormal": 500, "sigma": 0.8, "min": 16, "max": 4000},
    "output_tokens": {"lognormal": 160, "sigma": 0.6, "min": 8, "max": 800},
    "deadline_s": OBJECTIVE_S,
}
PROTECTION: dict[str, dict[str, Any]] = {
    "none": {},
    "concurrency cap": {"max_concurrency": 72},
    "queue length": {"queue_target_s": 1.0},
    "queued tokens": {"queued_tokens_target_s": 1.0},
    "deadlines": {"deadline_rejection": True},
    "all late ones": {"queue_target_s": 1.0, "queued_tokens_target_s": 1.0, "deadline_rejection": True},
}
LOADS = (0.9, 3.0)  # × capacity
WARM_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """One protection at one load. Rates are per second after the warm-up; the wait is that of what was served."""

    protection: str
    load: float
    offered_per_s: float
    goodput_per_s: float
    served_per_s: float
    refused_per_s: float
    ttft_p95_s: float


def capacity_of(load: dict[str, Any]) -> float:
    """Requests per second that the engine could serve of these lengths, by the roofline estimate."""
    settings, device = EngineSettings.from_table(ENGINE), device_named("h100")
    (stream,) = streams_of([load | {"rate_per_s": 1.0}], 1.0)
    return capacity_per_s(stream, settings, ModelRunner(settings, device), settings.kv_pool_tokens)


def measure(protection: str, load: float, seconds: float, seed: int = 1, *, longer: int = 1) -> Row:
    """Play `load` × capacity against one protection, with answers `longer` times as long."""
    lengths = {key: value * (longer if key != "sigma" else 1) for key, value in LOAD["output_tokens"].items()}
    demand = LOAD | {"output_tokens": lengths}
    loads = [demand | {"rate_per_s": load * capacity_of(demand)}]
    played = play_load(ENGINE | PROTECTION[protection], loads, seconds=seconds, seed=seed)
    return _row(protection if longer == 1 else f"{protection}, answers {longer} × as long", load, played)


def _row(protection: str, load: float, played: Played) -> Row:
    counted_s, since = played.seconds - WARM_UP_S, played.start + WARM_UP_S
    first_tokens = [r for r in played.left if r.first_token_at >= since]
    waits = np.array([r.first_token_at - r.arrived_at for r in first_tokens])
    refused = [r for r in played.left if r.finish_reason == "rejected" and r.finished_at >= since]
    offered = played.steps["arrived_total"][played.steps["begun_at"] >= since]
    return Row(
        protection, load,
        offered_per_s=float(offered[-1] - offered[0]) / counted_s,
        goodput_per_s=int((waits <= OBJECTIVE_S).sum()) / counted_s,
        served_per_s=len(played.served(WARM_UP_S)) / counted_s,
        refused_per_s=len(refused) / counted_s,
        ttft_p95_s=float(np.quantile(waits, 0.95)) if len(waits) else float("nan"),
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| protection | load | offered/s | goodput/s | served/s | refused/s | TTFT P95 of the served |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.protection} | {r.load:g} × | {r.offered_per_s:.1f} | {r.goodput_per_s:.1f} | {r.served_per_s:.1f} "
        f"| {r.refused_per_s:.1f} | {r.ttft_p95_s:.2f} s |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    rows = [measure(protection, load, seconds=180.0) for protection in PROTECTION for load in LOADS]
    rows += [measure(name, 3.0, seconds=240.0, longer=4) for name in ("concurrency cap", "queue length", "deadlines")]
    print(table(rows))
