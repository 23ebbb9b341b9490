"""Reads what a page says of the host and the containers: cAdvisor's `container_*`, node-exporter's `node_*`, and the
`process_*` of the engine's own page.

Most are counters: a ratio needs two looks. What a container has been through since its start is told by the first look
already, and counts only as long as there is no second one. An engine's page speaks of its API server's process alone:
a lower bound for "the busiest process".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..catalog import CATALOG, check_value
from ..model import Frame, Subject
from ..wire.exposition import Limits
from ..wire.exposition_plan import PageReader, Reading

SOURCE = "host"
_CONTAINER = (
    "container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total", "container_memory_working_set_bytes",
    "container_oom_events_total", "container_start_time_seconds",
)  # fmt: skip
_NODE = (
    "node_cpu_seconds_total", "node_load1", "node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes",
)  # fmt: skip
_PROCESS = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds")
HOST_NAMES = frozenset((*_CONTAINER, *_NODE, *_PROCESS))
"""Every sample name that is read here."""
_PREFIXES = (b"container_", b"node_", b"process_")


def speaks_of_host(body: bytes) -> bool:
    """Whether a page may have any of it."""
    return any(prefix in body for prefix in _PREFIXES)


class HostPage:
    """Follows one host. What names no container or several is the host's; a lone container is the engine's."""

    def __init__(self, host: Subject, engine: Subject) -> None:
        self._host = host
        self._engine = engine
        self._reader = PageReader(HOST_NAMES, Limits())
        self._last: dict[str, tuple[float, float]] = {}  # counter -> (value, at)
        self.told = False

    def read(self, body: bytes, at: float, *, of_engine: bool) -> tuple[Frame, ...]:
        """Frames of this look. `of_engine`: the page is the engine's, and so are its `process_*`."""
        reading = self._reader.read(body)
        if not reading.series:
            return ()
        container = self._container(reading, at)
        if of_engine:
            container |= self._process(reading, at)
        frames = (_frame(self._engine, at, container), _frame(self._host, at, self._node(reading, at)))
        found = tuple(frame for frame in frames if frame is not None)
        self.told = self.told or bool(found)
        return found

    def _container(self, reading: Reading, at: float) -> dict[str, float]:
        """Of the busiest real container: the pod's sum and the pause container count for nothing."""
        by_container: dict[tuple[str, str], dict[str, float]] = {}
        for one, value in zip(reading.series, reading.values, strict=True):
            if one.name in _CONTAINER and one.labels.get("container") not in ("", "POD"):
                key = (one.labels.get("pod", ""), one.labels.get("container", ""))
                by_container.setdefault(key, {})[one.name] = value
        if not by_container:
            return {}
        name, values = max(by_container.items(), key=lambda c: c[1].get(_CONTAINER[0], 0.0))
        throttled = self._ratio("/".join(name), values.get(_CONTAINER[1]), values.get(_CONTAINER[0]))
        return {
            "cgroup_cpu_throttled_ratio": throttled,
            "process_memory_bytes": values.get("container_memory_working_set_bytes", math.nan),
        }

    def _process(self, reading: Reading, at: float) -> dict[str, float]:
        values = dict(zip((s.name for s in reading.series), reading.values, strict=True))
        return {
            "process_cpu_ratio": self._rate("process", values.get("process_cpu_seconds_total"), at),
            "process_memory_bytes": values.get("process_resident_memory_bytes", math.nan),
            "process_open_files": values.get("process_open_fds", math.nan),
        }

    def _node(self, reading: Reading, at: float) -> dict[str, float]:
        """CPU in use over all modes but idle and iowait, load per CPU, memory that is not available."""
        idle = total = 0.0
        cpus: set[str] = set()
        single: dict[str, float] = {}
        for one, value in zip(reading.series, reading.values, strict=True):
            if one.name == "node_cpu_seconds_total":
                mode = one.labels.get("mode", "")
                cpus.add(one.labels.get("cpu", ""))
                if not mode.startswith("guest"):  # counted in user and nice
                    total += value
                    idle += value if mode in ("idle", "iowait") else 0.0
            elif one.name in _NODE:
                single[one.name] = value
        available, memory = single.get("node_memory_MemAvailable_bytes"), single.get("node_memory_MemTotal_bytes")
        used = 1 - available / memory if available is not None and memory else math.nan
        load = single.get("node_load1", math.nan) / len(cpus) if cpus else math.nan
        busy = self._ratio("node", total - idle, total, lifelong=False) if cpus else math.nan
        return {"host_cpu_ratio": busy, "host_load_ratio": load, "host_memory_used_ratio": used}

    def _ratio(self, key: str, part: float | None, whole: float | None, *, lifelong: bool = True) -> float:
        """Growth of a part ÷ growth of the whole since the last look; of the whole life where this is the first."""
        if part is None or whole is None or part != part or whole != whole:
            return math.nan
        old = self._last.get(f"{key}/part"), self._last.get(f"{key}/whole")
        self._last[f"{key}/part"], self._last[f"{key}/whole"] = (part, 0.0), (whole, 0.0)
        if old[0] is None or old[1] is None or whole < old[1][0]:
            return min(max(part / whole, 0.0), 1.0) if lifelong and whole > 0 else math.nan
        grown = whole - old[1][0]
        return min(max((part - old[0][0]) / grown, 0.0), 1.0) if grown > 0 else math.nan

    def _rate(self, key: str, value: float | None, at: float) -> float:
        """Growth per second since the last look."""
        if value is None or value != value:
            return math.nan
        old = self._last.get(key)
        self._last[key] = (value, at)
        if old is None or at <= old[1] or value < old[0]:
            return math.nan
        return (value - old[0]) / (at - old[1])


def _frame(subject: Subject, at: float, values: Mapping[str, float]) -> Frame | None:
    known = {n: v for n, v in values.items() if v == v and n in CATALOG and check_value(n, v)}
    if not known:
        return None
    return Frame(subject, SOURCE, tuple(known), np.array([at]), np.array([list(known.values())]))
