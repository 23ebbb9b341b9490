"""What an engine's processes were given: how many CPUs, how many threads they were told to use, who they are.

Of the environment nothing is kept but the thread counts named here. Torch and OpenMP size their pools by the machine's
CPUs, not by the container's quota: many threads on few CPUs are held back in every period.
"""

from __future__ import annotations

import math
from pathlib import Path

from .family import Family
from .kernel_files import read
from .process_files import allowed_cpus

_ENVIRONMENT_BYTES = 256 * 1024
THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCH_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
MANY_TO_ONE = 4.0


def process_facts(family: Family, proc: Path, quota_cores: float) -> dict[str, str]:
    """Facts by name; what cannot be read is left out. `quota_cores`: infinite without a quota, NaN where not known."""
    settings = thread_settings(family.pid, proc)
    facts = {f"env_{name.lower()}": value for name, value in settings.items()}
    facts["processes"] = str(len(family.members))
    allowed = allowed_cpus(proc / str(family.pid))
    if allowed == allowed:
        facts["cpus_allowed"] = f"{allowed:.0f}"
    if quota_cores == quota_cores:
        facts["cpu_quota"] = f"{quota_cores:g}" if math.isfinite(quota_cores) else "none"
    pool = float(settings.get("OMP_NUM_THREADS", allowed))
    if math.isfinite(quota_cores) and pool >= MANY_TO_ONE * quota_cores:
        facts["threads_over_quota"] = f"{pool:.0f} of {quota_cores:g}"
    return facts


def thread_settings(pid: int, proc: Path) -> dict[str, str]:
    """The thread counts in a process's environment as it was started; empty where that may not be read."""
    try:
        text = read(proc / str(pid) / "environ", _ENVIRONMENT_BYTES)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in text.split("\0"):
        name, _, value = entry.partition("=")
        if name in THREAD_SETTINGS and value.isascii() and value.isdigit() and len(value) <= 6:
            found[name] = value
    return found
