"""What really happened in a run, read from the engine's own records in the world stream and not from the agent.

`late` counts requests whose first token took longer than the objective, those that wait so long at the end included.
`onset_s` is when the mechanism of the expected class began to act; `shown_s` from when on it can be told (after the first whole
swing of the batch; once the queue exceeds two seconds of service), the point from which the time to detection counts. Both are
seconds from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuwatch.stats import Cycle, drain_refill_cycles, trailing_quantile

OBJECTIVE_S = 1.0
SHALLOW = (0.9, 0.75)
TOGETHER_S = 75.0  # cycles further apart belong to different episodes
DEMAND = ("overload", "traffic_surge")
_FIELDS = (
    "running", "waiting", "kv_used_blocks", "kv_total_blocks", "finished_total", "arrived_total", "head_wait_seconds",
    "preempted_total",
)  # fmt: skip
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """Requests that began and those that were late; times and cycle period in seconds, NaN where there is none."""

    requests: int
    late: int
    preempted: int
    onset_s: float = math.nan
    shown_s: float = math.nan
    period_s: float = math.nan

    @property
    def late_ratio(self) -> float:
        """Share of the requests that were late; NaN without requests."""
        return self.late / self.requests if self.requests else math.nan


def truth(stream: bytes, expected: str, hint_s: float) -> Truth:
    """Read a stream of mode `full`. `hint_s` is the onset that the scenario states, used where the records cannot say."""
    steps, ttft, start = _read(stream.splitlines())
    by_second = _by_second(steps, start)
    late = sum(1 for value in ttft if value > OBJECTIVE_S) + _late_at_end(by_second)
    onset = _onset(by_second, expected, hint_s)
    preempted = int(by_second["preempted_total"][-1]) if len(by_second["running"]) else 0
    return Truth(len(ttft) + _waiting_at_end(by_second), late, preempted, *onset)


def _read(lines: Iterable[bytes]) -> tuple[dict[str, list[float]], list[float], float]:
    """Step columns, TTFT of each finished request, and the time of the start."""
    columns: dict[str, list[float]] = {name: [] for name in ("ended_at", *_FIELDS)}
    ttft: list[float] = []
    start = math.nan
    for line in lines:
        if math.isnan(start):
            start = msgspec.json.decode(line)["t"]
        elif b'"src":"steps"' in line:
            cols = msgspec.json.decode(line)["cols"]
            for name, values in columns.items():
                values += cols[name]
        elif b'"src":"spans"' in line:
            ttft += _first_tokens(msgspec.json.decode(line)["cols"])
    return columns, ttft, start


def _first_tokens(cols: dict[str, list[Any]]) -> list[float]:
    """Seconds from arrival to first token of the requests in one span record (all spans of a request come together)."""
    arrived: dict[str, float] = {}
    first: dict[str, float] = {}
    for request, stage, begun, ended in zip(cols["request"], cols["stage"], cols["start"], cols["end"], strict=True):
        if stage == "request":
            arrived[request] = begun
        elif stage == "prefill":
            first[request] = min(first.get(request, math.inf), ended)
    return [first[request] - at for request, at in arrived.items() if request in first]


def _by_second(steps: dict[str, list[float]], start: float) -> dict[str, Floats]:
    """The last step of each second, held until the next; cell k is [k, k + 1) seconds after the start."""
    at = np.array(steps["ended_at"]) - start
    if not len(at):
        return {name: np.zeros(0) for name in _FIELDS}
    seconds = np.arange(1, math.ceil(float(at[-1])) + 1)
    index = np.maximum(np.searchsorted(at, seconds) - 1, 0)
    return {name: np.array(steps[name], float)[index] for name in _FIELDS}


def _waiting_at_end(s: dict[str, Floats]) -> int:
    return int(s["waiting"][-1]) if len(s["waiting"]) else 0


def _late_at_end(s: dict[str, Floats]) -> int:
    """Of the requests that wait at the end, all but the arrivals of the last second, where the head is late."""
    if len(s["waiting"]) < 2 or s["head_wait_seconds"][-1] <= OBJECTIVE_S:
        return 0
    recent = s["arrived_total"][-1] - s["arrived_total"][-2]
    return max(0, int(s["waiting"][-1] - recent))


def _onset(s: dict[str, Floats], expected: str, hint_s: float) -> tuple[float, float, float]:
    """(onset, from when on it can be told, period of its cycles)."""
    if expected == "batch_thrashing":
        return _first_swing(s, hint_s)
    if expected in DEMAND:
        shown_s = _beyond_service(s, hint_s)
        return _queue_began(s, shown_s), shown_s, math.nan
    if expected == "long_context_kv_pressure":
        began_s = _full_pool(s, hint_s)
        return began_s, began_s, math.nan
    return hint_s, hint_s, math.nan


def _first_swing(s: dict[str, Floats], hint_s: float) -> tuple[float, float, float]:
    """When the batch began to drain and when it had refilled, for the first of at least three cycles in a row."""
    reference = trailing_quantile(s["running"], 60, 0.9)
    for marks in ((0.7, 0.45), SHALLOW):
        cycles, _ = drain_refill_cycles(s["running"], s["waiting"], reference, *marks)
        row: list[Cycle] = []
        for cycle in cycles:
            if cycle.refilled < hint_s - 20:
                continue
            row = [*row, cycle] if row and cycle.fell - row[-1].refilled <= TOGETHER_S else [cycle]
            if len(row) >= 3:
                period_s = float(np.median(np.diff([c.trough for c in row])))
                return float(row[0].fell), float(row[0].refilled + 1), period_s
    return math.nan, math.nan, math.nan


def _beyond_service(s: dict[str, Floats], hint_s: float) -> float:
    """From when on the queue is longer than two seconds of service for ten seconds, and longer after them."""
    served = np.maximum(_per_second(s["finished_total"], 60), 1e-9)
    beyond = s["waiting"] > 2 * served
    for at in range(max(0, int(hint_s) - 60 if not math.isnan(hint_s) else 0), len(beyond) - 10):
        if beyond[at : at + 10].all() and s["waiting"][at + 10] > s["waiting"][at]:
            return float(at + 1)
    return math.nan


def _queue_began(s: dict[str, Floats], shown_s: float) -> float:
    """Since when the queue of that moment has not been as good as empty for five seconds."""
    if math.isnan(shown_s):
        return math.nan
    small = s["waiting"] <= max(1.0, 0.1 * s["waiting"][int(shown_s) - 1])
    for at in range(int(shown_s) - 1, 4, -1):
        if small[at - 5 : at].all():
            return float(at)
    return 0.0


def _per_second(counter: Floats, span: int) -> Floats:
    before = np.concatenate([np.full(min(span, len(counter)), counter[0]), counter[:-span]])
    return (counter - before) / np.minimum(np.arange(1, len(counter) + 1), span)


def _full_pool(s: dict[str, Floats], hint_s: float) -> float:
    """From when on the pool is full and requests wait for five seconds on end."""
    full = (s["kv_used_blocks"] >= 0.85 * s["kv_total_blocks"]) & (s["waiting"] > 0)
    for at in range(max(0, int(hint_s) - 20 if not math.isnan(hint_s) else 0), len(full) - 5):
        if full[at : at + 5].all():
            return float(at + 1)
    return math.nan
