"""How long probes take on a torch device, and what the device can do at best.

Probes are run in rounds, each round in another order, until the time is used up. A probe's time is the lower quartile
over the rounds: what a shared machine adds to a step is never negative. On a single CPU thread, seconds are CPU seconds
of this process: what a step would take if it had the machine to itself.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..step import Runner
from .probes import Probe

if TYPE_CHECKING:
    import torch


class CpuClock:
    """The CPU seconds of this process: clock.Clock for a runner on one thread."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.process_time()


@dataclass(frozen=True, slots=True)
class Peaks:
    """The best of a device's plain kernels: large matrix products, and copies (bytes read and written)."""

    flops_per_s: float
    bytes_per_s: float


def probe_seconds(
    probes: Sequence[Probe],
    runner: Runner,
    *,
    block_tokens: int,
    vocab: int,
    seconds: float,
    monotonic: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Step time of each probe, from whole rounds that begin within `seconds`; at least one."""
    plans = [probe.plan(block_tokens, vocab) for probe in probes]
    times: list[list[float]] = [[] for _ in probes]
    for plan in plans:  # caches, kernels and allocations
        runner.run(plan)
    order, draw = list(range(len(probes))), random.Random(0)
    begun = monotonic()
    while not times[0] or monotonic() - begun < seconds:
        draw.shuffle(order)
        for index in order:
            times[index].append(runner.run(plans[index])[1])
    return [statistics.quantiles(row, n=4)[0] if len(row) > 1 else row[0] for row in times]


def peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Measured in about a second."""
    import torch

    size = 4096 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.ones(size * size * 16, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    product_s = _best(lambda: torch.mm(a, b), device)
    copy_s = _best(lambda: target.copy_(source), device)
    return Peaks(2.0 * size**3 / product_s, 2.0 * source.nbytes / copy_s)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the shortest of a few calls."""
    import torch

    alone = device.type == "cpu" and torch.get_num_threads() == 1
    now, shortest = time.process_time if alone else time.perf_counter, float("inf")
    for _ in range(15):
        begun = now()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        shortest = min(shortest, now() - begun)
    return shortest
