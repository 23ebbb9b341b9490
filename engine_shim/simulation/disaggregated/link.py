"""The way of KV into a decode engine: one transfer after another, each with the whole bandwidth. Clock seconds, bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...faults import Faults, Slowdown
from ...telemetry.exposition import Histogram

SECONDS_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


class TransferLink:
    """Knows when what is sent will have arrived. `slow` are times at which the link is slower."""

    def __init__(self, bytes_per_s: float, latency_s: float, slow: Sequence[Slowdown] = ()) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._speeds = Faults(slow)
        self._free_at = 0.0
        self._sent: deque[tuple[float, float, float, float]] = deque()  # asked, begins, arrives, bytes; not yet arrived
        self.bytes = 0.0  # of transfers that have arrived
        self.seconds = Histogram(SECONDS_BOUNDS)  # each one's time, from its turn on the link to its arrival

    def send(self, size_bytes: float, now: float) -> float:
        """Queue a transfer; returns the clock time at which it has arrived."""
        begins = max(now, self._free_at)
        self._free_at = self._speeds.step_end(begins, size_bytes / self._bytes_per_s)
        arrives = self._free_at + self._latency_s
        self._sent.append((now, begins, arrives, size_bytes))
        return arrives

    def settle(self, now: float) -> None:
        """Count what has arrived by now."""
        while self._sent and self._sent[0][2] <= now:
            _, begins, arrives, size_bytes = self._sent.popleft()
            self.bytes += size_bytes
            self.seconds.observe(arrives - begins)

    def under_way(self, now: float) -> int:
        """Transfers that have been asked for and not arrived."""
        self.settle(now)
        return len(self._sent)

    def queued(self, now: float) -> int:
        """Of them, those whose turn has not come."""
        self.settle(now)
        return sum(begins > now for _, begins, _, _ in self._sent)
