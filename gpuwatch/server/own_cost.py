"""What the agent costs: its own CPU seconds and resident bytes, from /proc and getrusage, without a library."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def cpu_seconds() -> float:
    """User and system time of this process since its start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> float:
    """Resident memory of this process; NaN where /proc does not say."""
    try:
        return int(statm.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return math.nan
