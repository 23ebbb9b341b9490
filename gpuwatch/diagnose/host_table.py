"""Reads host.csv: a column of times and columns of what the host, the engine's processes and the GPU did.

A column is a catalogue name (`host_cpu_ratio`, `process_memory_bytes`, `gpu_power_watts`) or one of ALIASES: names that
`psutil`, `vmstat`, `/proc` and `nvidia-smi` users write, with their units. With a column `pid` there is a row for each
process and time; the busiest counts. Unknown columns are counted, cells that are no number are missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from ..catalog import CATALOG, check_value
from ..model import Batch, Frame, Subject
from .times import unix_seconds

MAX_ROWS = 1_000_000
TIME_COLUMNS = ("t_wall", "t", "time", "timestamp", "ts", "t_unix", "unix", "datetime", "date")
_KIB, _MIB, _GIB = 1024.0, 1024.0**2, 1024.0**3


class Column(msgspec.Struct, frozen=True):
    """Where a column goes: `how` is value, rate (growth per second) or part (growth ÷ growth of `whole`)."""

    signal: str
    factor: float = 1.0
    how: str = "value"
    whole: str = ""


ALIASES: dict[str, Column] = {
    **dict.fromkeys(("cpu_percent", "cpu_pct", "host_cpu_percent", "cpu_util"), Column("host_cpu_ratio", 0.01)),
    **dict.fromkeys(("mem_percent", "memory_percent", "mem_used_percent"), Column("host_memory_used_ratio", 0.01)),
    **dict.fromkeys(("load_per_cpu", "load1_per_cpu"), Column("host_load_ratio")),
    **dict.fromkeys(
        ("process_cpu_percent", "proc_cpu_percent", "engine_cpu_percent"), Column("process_cpu_ratio", 0.01)
    ),
    **dict.fromkeys(
        ("cpu_seconds", "cpu_s", "cpu_time_s", "process_cpu_seconds", "process_cpu_seconds_total"),
        Column("process_cpu_ratio", how="rate"),
    ),
    **dict.fromkeys(("rss", "rss_bytes"), Column("process_memory_bytes")),
    **dict.fromkeys(("rss_kb", "rss_kib"), Column("process_memory_bytes", _KIB)),
    **dict.fromkeys(("rss_mb", "rss_mib"), Column("process_memory_bytes", _MIB)),
    **dict.fromkeys(("rss_gb", "rss_gib"), Column("process_memory_bytes", _GIB)),
    **dict.fromkeys(
        ("nr_throttled", "cpu_throttled_periods", "container_cpu_cfs_throttled_periods_total"),
        Column("cgroup_cpu_throttled_ratio", how="part", whole="nr_periods"),
    ),
    **dict.fromkeys(("throttled_ratio", "cpu_throttled_ratio"), Column("cgroup_cpu_throttled_ratio")),
    **dict.fromkeys(("utilization.gpu", "gpu_util", "gpu_util_percent"), Column("gpu_util_ratio", 0.01)),
    **dict.fromkeys(("power.draw", "power_w", "gpu_power_w"), Column("gpu_power_watts")),
    **dict.fromkeys(("temperature.gpu", "gpu_temp_c"), Column("gpu_temperature_celsius")),
    **dict.fromkeys(("clocks.sm", "clocks.current.sm", "sm_clock_mhz"), Column("gpu_sm_clock_hertz", 1e6)),
    **dict.fromkeys(("memory.used", "gpu_mem_used_mib"), Column("gpu_memory_used_bytes", _MIB)),
}
"""Column (lower case, units in brackets taken off) → signal."""
_WHOLES = ("nr_periods", "cpu_periods", "container_cpu_cfs_periods_total")
_LABELS = frozenset(
    {"pid", "name", "comm", "role", "host", "hostname", "n", "uuid", "gpu_uuid", "index", "state", "cmd"}
)


class HostTable:
    """What a table held. `unknown` are columns that no signal fits, `dropped` cells and rows that could not be used."""

    def __init__(self, engine: str, host: str = "host") -> None:
        self.engine, self.host = Subject(engine=engine), Subject(host=host)
        self.items: list[tuple[float, Batch]] = []
        self.unknown: list[str] = []
        self.dropped = 0
        self._last: dict[tuple[str, str], tuple[float, float, float]] = {}

    def read(self, lines: Iterable[bytes]) -> None:
        """Read the rows. ValueError where no column is a time, or none is known."""
        rows = csv.reader(line.decode("utf-8", "replace") for line in lines)
        header = [_plain(name) for name in next(rows, [])]
        at_column = next((header.index(name) for name in TIME_COLUMNS if name in header), None)
        if at_column is None:
            raise ValueError(
                f"no column of times among {', '.join(header[:12])}; {' or '.join(TIME_COLUMNS[:4])} is read"
            )
        columns = {i: c for i, name in enumerate(header) if i != at_column and (c := column_of(name)) is not None}
        self.unknown = [
            name for i, name in enumerate(header)
            if i != at_column and i not in columns and name not in (*_LABELS, *_WHOLES, *TIME_COLUMNS)
        ]  # fmt: skip
        if not columns:
            raise ValueError(f"no column that is known among {', '.join(header[:12])}")
        for at, group in self._by_time(rows, header, at_column):
            frames = self._frames(at, group, columns, header)
            if frames:
                self.items.append((at, Batch("host", "host", self.host, at, frames=frames)))

    def _by_time(
        self, rows: Iterable[list[str]], header: list[str], at_column: int
    ) -> Iterator[tuple[float, list[list[str]]]]:
        """Rows of one time together; rows without a time, too short or out of order are dropped and counted."""
        now, read = math.nan, 0
        group: list[list[str]] = []
        for row in rows:
            at = unix_seconds(row[at_column]) if len(row) == len(header) else math.nan
            read += 1
            if at != at or read > MAX_ROWS or at < now:
                self.dropped += bool(row)
                continue
            if group and at != now:
                yield now, group
                group = []
            now = at
            group.append(row)
        if group:
            yield now, group

    def _frames(
        self, at: float, group: list[list[str]], columns: dict[int, Column], header: list[str]
    ) -> tuple[Frame, ...]:
        by_subject: dict[Subject, dict[str, float]] = {}
        for row in group:
            key = next((row[header.index(n)] for n in ("pid", "uuid", "gpu_uuid", "index") if n in header), "")
            for i, column in columns.items():
                value = self._value(at, f"{key}/{i}", row[i], column, row, header)
                if value != value:
                    continue
                if column.signal not in CATALOG or not check_value(column.signal, value):
                    self.dropped += 1
                    continue
                into = by_subject.setdefault(self._subject(column.signal, key), {})
                into[column.signal] = _joined(column.signal, into.get(column.signal), value)
        return tuple(
            Frame(s, "host", tuple(v), np.array([at]), np.array([list(v.values())])) for s, v in by_subject.items()
        )

    def _value(self, at: float, key: str, cell: str, column: Column, row: list[str], header: list[str]) -> float:
        value = _number(cell)
        if value != value:
            self.dropped += bool(cell.strip()) and cell.strip().lower() not in ("nan", "n/a", "[n/a]", "null", "none")
            return math.nan
        if column.how == "value":
            return value * column.factor
        whole = next((_number(row[header.index(n)]) for n in _WHOLES if n in header), math.nan)
        old = self._last.get((key, column.signal))
        self._last[key, column.signal] = (value, at, whole)
        if old is None or value < old[0]:
            return math.nan
        grown = at - old[1] if column.how == "rate" else whole - old[2]
        return (value - old[0]) / grown if grown > 0 else math.nan

    def _subject(self, signal: str, key: str) -> Subject:
        if signal.startswith("gpu_"):
            return Subject(gpu=key or "gpu0")
        return self.host if signal.startswith("host_") else self.engine


def _plain(name: str) -> str:
    return name.strip().strip('"').lower().split(" [")[0].split(" (")[0]


def column_of(name: str) -> Column | None:
    """Where a column of this name goes; None for one that is not known."""
    known = ALIASES.get(name)
    if known is None and name in CATALOG and CATALOG[name].kind != "histogram":
        return Column(name)
    return known


def _number(cell: str) -> float:
    """The number in a cell, a unit behind it taken off."""
    try:
        return float(cell.strip().split(" ")[0].rstrip("%"))
    except (ValueError, IndexError):
        return math.nan


_MERGED: dict[str, Callable[[float, float], float]] = {"process_memory_bytes": lambda a, b: a + b}


def _joined(signal: str, old: float | None, new: float) -> float:
    """Several processes at one time: memory adds up, of the rest the largest counts."""
    return new if old is None else _MERGED.get(signal, max)(old, new)
