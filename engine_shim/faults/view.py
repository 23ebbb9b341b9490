"""What faults change in what watchers get to see, where a watcher stands that the engine's own telemetry does not know.

Counters of single GPUs when one of them limps or hangs, the host's counters, the client's side of a stream, and pages of
an exporter that has frozen. Engines without such faults show what they always did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..devices.state import DeviceState
from ..request import Request
from .device import EVERY_GPU
from .front_end import BlockedEventLoop
from .run import Faults

if TYPE_CHECKING:
    from ..engine.engine import Engine

HOST = "shim-host"
# Ranks that wait for one that never comes spin in the all-reduce, which with what is fused to it holds nearly all SMs.
SPINNING_SM_RATIO = 0.9
SPINNING_POWER_RATIO = 0.35
MAX_WAITS = 64  # spans of one request


class FaultView:
    """The faults of a run, from the watchers' side."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._since: float | None = None

    @property
    def shows_host(self) -> bool:
        """Whether there is anything to say about the host."""
        return self._faults.shows_host

    def of_gpu(self, index: int, readings: dict[str, float], now: float, state: DeviceState) -> dict[str, float]:
        """What the counters of the engine's GPU `index` show where `readings` are those of a common one."""
        shown = dict(readings)
        if not self._faults.all:
            return shown
        limps = state.gpu in (EVERY_GPU, index)
        shown["gpu_throttled_ratio"] = float(state.throttled and limps)
        if not limps:
            shown["gpu_sm_clock_hertz"] = readings["gpu_sm_clock_max_hertz"]
        shown["gpu_xid_last_code"] = float(self._faults.xid(now))
        hung = self._faults.hung_gpu(now)
        if hung is not None:
            shown |= _waiting_at_a_collective(index == hung, readings)
        return shown

    def of_host(self, engine: Engine, now: float, busy_ratio: float) -> dict[str, float]:
        """The host's counters over the window since the last call."""
        since = now - 1.0 if self._since is None else self._since
        self._since = now
        return self._faults.host_readings(engine, now, busy_ratio, max(now - since, 1e-9))

    def page(self, name: str, fresh: bytes, now: float) -> bytes:
        """What a reader of the page gets."""
        return self._faults.pages.page(name, fresh, now)

    def client_spans(self, request: Request) -> list[tuple[float, float]]:
        """The waits of the request's client between two pieces, where they are not the engine's: (start, end)."""
        waits = self._faults.client_spans(request)
        for loop in self._faults.front_end.loops:
            waits += _blocks_in(loop, request)
        return waits[:MAX_WAITS]


def _waiting_at_a_collective(hangs: bool, readings: dict[str, float]) -> dict[str, float]:
    """The GPU that hangs runs nothing; the others spin."""
    limit = readings["gpu_power_limit_watts"]
    nothing = dict.fromkeys(
        ("gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_dram_bytes_per_second", "gpu_sm_occupancy_ratio"), 0.0
    )
    busy = 0.0 if hangs else 1.0
    return nothing | {
        "gpu_gr_engine_active_ratio": busy,
        "gpu_util_ratio": busy,
        "gpu_sm_active_ratio": 0.0 if hangs else SPINNING_SM_RATIO,
        "gpu_power_watts": limit * (0.15 if hangs else SPINNING_POWER_RATIO),
    }


def _blocks_in(loop: BlockedEventLoop, request: Request) -> list[tuple[float, float]]:
    """The blocks of an event loop in which the request had tokens to send."""
    first, last = request.first_token_at, request.last_token_at
    if not first or not loop.at < last:
        return []
    waits = []
    begins = loop.at + max(int((first - loop.at) // loop.every_s), 0) * loop.every_s
    while begins < min(last, loop.until) and len(waits) < MAX_WAITS:
        if begins + loop.block_s > first:
            waits.append((max(begins, first), begins + loop.block_s))
        begins += loop.every_s
    return waits
