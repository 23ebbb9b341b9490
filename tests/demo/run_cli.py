"""Runs `gpuwatch demo` as a user does, in a process of its own, and a short scenario to run it on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLI = [sys.executable, "-c", "from gpuwatch.cli.main import main; main()"]

SHORT = """
about = "Steady light load."
duration_s = {duration_s}
[engine]
model = "{model}"
max_num_seqs = 16
kv_pool_tokens = 8000
[[load]]
arrivals = "poisson"
rate_per_s = 3.0
prompt_tokens = 64
output_tokens = 12
tenant = "a"
[expect]
class = "none"
"""


def scenario(folder: Path, duration_s: float, model: str = "7b") -> Path:
    """A scenario file of this length."""
    path = folder / "short.toml"
    path.write_text(SHORT.format(duration_s=duration_s, model=model))
    return path


def demo(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    return subprocess.run([*CLI, "demo", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
