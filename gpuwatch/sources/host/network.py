"""The network of one namespace: segments sent again, packets dropped, bytes. The loopback device is left out."""

from __future__ import annotations

import math
from pathlib import Path

from ..growth import Growth
from .kernel_files import number, read_or_empty

_MOST_DEVICES = 1024


class Network:
    """Growth of the counters under `folder` (`/proc/net`, or `/proc/PID/net` for the namespace of a process)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[float, float] | None = None
        self._bytes_in, self._bytes_out, self._dropped = Growth(), Growth(), Growth()

    def read(self, now: float) -> dict[str, float]:
        """What is known of the time since the last look."""
        received, sent, dropped = _devices(read_or_empty(self._folder / "dev"))
        return {
            "host_net_retransmit_ratio": self._again(),
            "host_net_rx_bytes_per_second": self._bytes_in.per_second(received, now),
            "host_net_tx_bytes_per_second": self._bytes_out.per_second(sent, now),
            "host_net_dropped_per_second": self._dropped.per_second(dropped, now),
        }

    def _again(self) -> float:
        """TCP segments sent again ÷ segments sent; NaN where none was sent."""
        tcp = _tcp(read_or_empty(self._folder / "snmp"))
        now = tcp.get("OutSegs", math.nan), tcp.get("RetransSegs", math.nan)
        last, self._last = self._last, now
        if last is None:
            return math.nan
        sent, again = now[0] - last[0], now[1] - last[1]
        # The kernel's OutSegs leaves out what it sends again.
        return again / (sent + again) if sent >= 0 and again >= 0 and sent + again > 0 else math.nan


def _tcp(text: str) -> dict[str, float]:
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    return dict(zip(lines[0], map(number, lines[1]), strict=False)) if len(lines) >= 2 else {}


def _devices(text: str) -> tuple[float, float, float]:
    """Bytes in, bytes out and packets dropped of all devices; NaN without any."""
    sums = [0.0, 0.0, 0.0]
    seen = False
    for line in text.splitlines()[2 : _MOST_DEVICES + 2]:
        name, _, rest = line.partition(":")
        words = [number(word) for word in rest.split()]
        if name.strip() == "lo" or len(words) < 12:
            continue
        seen = True
        for i, figure in enumerate((words[0], words[8], words[3] + words[11])):
            sums[i] += figure
    return (sums[0], sums[1], sums[2]) if seen else (math.nan, math.nan, math.nan)
