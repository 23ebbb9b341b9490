"""Prefill and decode on separate devices against engines that do both, on as many devices, and over slower links.

    python -m engine_shim.studies.disaggregated

Two modelled H100 with a 7B model; chat, and now and then a prompt of 24,000 tokens. Engines that do both share the load
evenly: one of them is played with half of it. Gaps are those between tokens of whoever decodes all the while; TTFT is
the client's, from arrival at the router to the first token of the decode engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..clock import VirtualClock
from ..demand.arrivals import Demand
from ..devices.profile_file import device_named
from ..engine.engine import Engine
from ..request import Request, Stage
from ..settings.engine import EngineSettings
from ..simulation.disaggregated.fleet import Fleet
from ..simulation.disaggregated.instance import Instance
from ..simulation.disaggregated.link import TransferLink
from ..simulation.disaggregated.simulation import settings_for
from .played import play_load, streams_of
from .silence import Silence

Table = dict[str, Any]
ENGINE: Table = {
    "model": "7b",
    "max_num_seqs": 128,
    "kv_pool_tokens": 300_000,
    "reserve": "prompt",
    "prefix_cache": False,
}
APART: Table = {"prefill_devices": 1, "decode_devices": 1}
CHAT: Table = {
    "name": "chat", "rate_per_s": 10.0,
    "prompt_tokens": {"lognormal": 800, "sigma": 0.7, "min": 50, "max": 4000}, "output_tokens": {"uniform": [100, 400]},
}  # fmt: skip
LONG: Table = {"name": "long", "rate_per_s": 0.2, "prompt_tokens": 24_000, "output_tokens": 100}
LINKS = {"50 GB/s": 50e9, "25 GB/s": 25e9, "3 GB/s": 3e9, "1.5 GB/s": 1.5e9}
WARM_UP_S = 20.0


class Watched(Silence):
    """Keeps an instance's steps; telemetry and observer in one."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, np.ndarray]] = []

    def steps(self, columns: dict[str, np.ndarray], readings: dict[str, np.ndarray]) -> None:
        """See simulate.Observer."""
        self.blocks.append(columns)

    def poll(self, now: float, open_record: list[float] | None, engine: Engine) -> None:
        """Nothing is shown meanwhile."""

    def event(self, what: str, at: float, detail: dict[str, Any]) -> None:
        """Fleets have no outages."""

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """All steps by field."""
        return {name: np.concatenate([block[name] for block in self.blocks]) for name in self.blocks[0]}


@dataclass
class PlayedFleet:
    """A fleet after its run; `left` are the clients' requests with the stages of both their parts."""

    start: float
    prefill: list[Instance] = field(default_factory=list)
    decode: list[Instance] = field(default_factory=list)
    watched: dict[Instance, Watched] = field(default_factory=dict)
    left: list[Request] = field(default_factory=list)

    def stage_s(self, stage: Stage, nth: int = 0) -> np.ndarray:
        """How long each request was in a stage for the nth time; the second wait is that for the decode engine's blocks."""
        spans = ([end - start for s, start, end in r.stages if s is stage] for r in self.left)
        return np.array([durations[nth] for durations in spans if len(durations) > nth])


def play_fleet(
    engine: Mapping[str, Any], loads: Sequence[Mapping[str, Any]], seconds: float, seed: int = 1
) -> PlayedFleet:
    """Play [[load]] tables against the prefill and decode engines of these settings, on modelled H100s."""
    settings, device, clock = EngineSettings.from_table(engine), device_named("h100"), VirtualClock()
    streams = streams_of(loads, seconds)
    blocks = settings.pool_blocks(device)
    pool_tokens = blocks * settings.block_tokens
    rates = [s.rate_per_s or 0.0 for s in streams]
    demand = Demand(streams, rates, pool_tokens=pool_tokens, seed=seed, start=clock.now())
    played = PlayedFleet(clock.now())
    for role, count, group in (
        ("prefill", settings.prefill_devices, played.prefill),
        ("decode", settings.decode_devices, played.decode),
    ):
        for _ in range(count):
            watched = Watched()
            link = TransferLink(settings.kv_transfer_bytes_per_s, settings.kv_transfer_latency_s)
            instance = Instance(role, settings_for(role, settings), blocks, device, clock, watched, watched, link)
            played.watched[instance] = watched
            group.append(instance)

    def left(request: Request) -> None:
        played.left.append(request)
        demand.finished(request)

    Fleet(clock, played.prefill, played.decode, demand, left).run(clock.now() + seconds)
    return played


def gaps_s(columns: Mapping[str, np.ndarray], start: float) -> np.ndarray:
    """Gaps between tokens of whoever decodes all the while."""
    late = (columns["decode_tokens"] > 0) & (columns["begun_at"] >= start + WARM_UP_S)
    return np.diff(columns["ended_at"][late])


def _row(name: str, requests: list[Request], gaps: np.ndarray, transfer: str, blocks: str) -> str:
    ttft = np.array([r.first_token_at - r.arrived_at for r in requests if r.first_token_at])
    p50, p95 = np.percentile(ttft, (50, 95))
    p99, longest = 1e3 * np.percentile(gaps, 99), 1e3 * gaps.max()
    return f"| {name} | {p50:.3f} | {p95:.3f} | {p99:.1f} | {longest:.1f} | {blocks} | {transfer} |"


def main(seconds: float = 120.0) -> None:
    """Print the table."""
    print("| two H100 | TTFT P50 s | P95 s | gap P99 ms | longest ms | wait for blocks P95 s | transfer P95 s |")
    print("|---|---|---|---|---|---|---|")
    half = [load | {"rate_per_s": load["rate_per_s"] / 2} for load in (CHAT, LONG)]
    for name, settings in (
        ("both on each", {}),
        ("both on each, prefill_step_share 0.06", {"prefill_step_share": 0.06}),
    ):
        mixed = play_load(ENGINE | settings, half, seconds=seconds)
        print(_row(name, mixed.served(WARM_UP_S), gaps_s(mixed.steps, mixed.start), "–", "–"))
    for name, bytes_per_s in LINKS.items():
        fleet = play_fleet(ENGINE | APART | {"kv_transfer_bytes_per_s": bytes_per_s}, [CHAT, LONG], seconds)
        gaps = gaps_s(fleet.watched[fleet.decode[0]].columns, fleet.start)
        late = [r for r in fleet.left if r.arrived_at >= fleet.start + WARM_UP_S]
        transfer = f"{np.percentile(fleet.stage_s(Stage.TRANSFER), 95):.3f}"
        print(_row(f"apart, {name}", late, gaps, transfer, f"{np.percentile(fleet.stage_s(Stage.QUEUE, 1), 95):.3f}"))


if __name__ == "__main__":
    main()
