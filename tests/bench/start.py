"""How long `gpuwatch --help` takes, and how long the agent takes until it shows a first sample."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from tests.bench.row import Row

GPUWATCH = [sys.executable, "-c", "from gpuwatch.cli.main import main; main()"]
"""What the installed script does, without needing one."""


def help_shown() -> Row:
    """Wall time of the help, against an interpreter that does nothing."""
    __import__("gpuwatch.cli.main")
    ours, bare = [], []
    for _ in range(7):
        ours.append(_wall([*GPUWATCH, "--help"]))
        bare.append(_wall([sys.executable, "-c", "pass"]))
    return Row("ms", 150, statistics.median(ours) * 1e3,
        note=f"wall time; an interpreter that does nothing takes {statistics.median(bare) * 1e3:.0f} ms here",
    )  # fmt: skip


def _wall(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun
