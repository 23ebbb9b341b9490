"""What users bring, made from a simulated world: pages as a loop around curl leaves them, and pages for a Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = 1_764_000_000.0


@cache
def engine_pages(scenario: str, seed: int = 1, seconds: int | None = None) -> tuple[tuple[float, str], ...]:
    """(time, page) at 1 Hz, under vLLM's names, as an engine with default settings shows them."""
    limit = [] if seconds is None else ["--duration", str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "engine_shim", "simulate", scenario, "--device", "h100", "--seed", str(seed),
         "--telemetry", "vllm-defaults", "--out", "-", *limit],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    records = (json.loads(line) for line in done.stdout.splitlines())
    return tuple((r["t"], r["body"]) for r in records if r.get("src") == "page" and r["role"] == "engine")


def curl_loop(folder: Path, pages, every: int = 1, first: int = 0, name: str = "page_{n}.txt") -> Path:
    """Write every `every`-th page and an index.csv beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["n,t_wall"]
    for n, (at, body) in enumerate(pages[first::every], start=1):
        (folder / name.format(n=n)).write_text(body)
        rows.append(f"{n},{at}")
    (folder / "index.csv").write_text("\n".join(rows) + "\n")
    return folder
