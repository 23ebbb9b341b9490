"""Memory of a simulated engine after ever more requests: `python -m engine_shim.studies.memory [REQUESTS]`.

A 1B model on one H100 serves short requests of three kinds, 400 a second: in bursts, with a common prefix, and from
clients in a closed loop. The world stream is written in full and thrown away. What counts is how the process grows after
its first looks, not its size: a kept request would be 1.5 kB.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import IO, cast

import psutil

from ..demand.scenario import Scenario, parse_scenario
from ..simulation.assemble import simulate

RATE_PER_S = 400.0
LOOKS = 6
_LOADS = [
    {
        "name": "open", "arrivals": "gamma", "cv": 2.0, "rate_per_s": RATE_PER_S * 0.8,
        "prompt_tokens": {"uniform": [10, 60]}, "output_tokens": {"uniform": [1, 4]},
    },
    {
        "name": "shared", "arrivals": "poisson", "rate_per_s": RATE_PER_S * 0.2,
        "prompt_tokens": 100, "shared_prefix_tokens": 64, "output_tokens": 2,
    },
    {"name": "closed", "arrivals": "closed", "concurrency": 4, "prompt_tokens": 30, "output_tokens": 40},
]  # fmt: skip


class _Nowhere:
    """Takes a world stream and keeps nothing but its size."""

    size_bytes = 0

    def write(self, data: bytes) -> int:
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def many(requests: float) -> Scenario:
    """About so many requests of the open streams; the closed loop adds some."""
    table = {
        "about": "many short requests", "duration_s": requests / RATE_PER_S,
        "engine": {"model": "1b", "max_num_seqs": 128}, "load": _LOADS, "expect": {"class": "none"},
    }  # fmt: skip
    return parse_scenario(table, file="many", stem="many", device="h100")


def resident_bytes(after: Sequence[float], mode: str = "full") -> tuple[list[int], int]:
    """Size of this process once it has played so many requests, ascending; and that of the stream it wrote."""
    process, nowhere = psutil.Process(), _Nowhere()
    sizes: list[int] = []

    def look(now_s: float) -> None:
        while len(sizes) < len(after) and now_s >= after[len(sizes)] / RATE_PER_S:
            gc.collect()
            sizes.append(process.memory_info().rss)

    simulate(many(after[-1]), cast("IO[bytes]", nowhere), device="h100", seed=1, mode=mode, on_poll=look)
    return sizes, nowhere.size_bytes


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    if len(arguments) > 1 or not all(a.isdecimal() and int(a) >= RATE_PER_S * LOOKS for a in arguments):
        least = int(RATE_PER_S * LOOKS)
        print(f"usage: python -m engine_shim.studies.memory [REQUESTS, at least {least}]", file=sys.stderr)
        return 2
    whole = int(arguments[0]) if arguments else 300_000
    after = [whole * n / LOOKS for n in range(1, LOOKS + 1)]
    sizes, stream_bytes = resident_bytes(after)
    print(f"{'requests':>10} {'MB resident':>12} {'MB since the first look':>24}")
    for requests, size in zip(after, sizes, strict=True):
        print(f"{requests:>10,.0f} {size / 1e6:>12.1f} {(size - sizes[0]) / 1e6:>24.2f}")
    print(f"world stream written: {stream_bytes / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
