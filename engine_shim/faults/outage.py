"""The end of the engine's process, and starts that fail.

Everything in flight is lost, and a new life begins after `down_s`, with an empty cache and counters at zero. A start
that fails ends before the engine is ready, and the supervisor tries again.
"""

from __future__ import annotations

from dataclasses import dataclass

from .interval import FOREVER


@dataclass(frozen=True)
class Outage:
    """The engine's process ends at the clock time `at` and starts again `down_s` later; FOREVER: it does not.

    `xid` is what the driver writes to its log, where a device has failed; it stays to be read. Of a failed start,
    each attempt ends `try_s` after it began, and is followed by the next as long as the engine is down.
    """

    at: float
    down_s: float
    kind: str = "crash"
    xid: int = 0
    try_s: float = FOREVER
