"""Readings from an exporter's page: by line, in base units, one Frame a device.

A page that says what the last one said is a repeat (dcgm-exporter renews its values every 30 s by default): it is counted
and brings no samples, so that the age of each series grows. Blank values and broken lines are dropped and counted, rows
that time slicing repeats are read once. A MIG instance is a subject of its own (`UUID/instance`); board values go to the
device. What the exporter does not show stays absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ....catalog import check_value
from ....model import Event, Frame, Info, Subject
from ....wire.exposition import DEFAULT_LIMITS, Limits, Series
from ....wire.exposition_plan import PageReader
from ..ownership.holder import Holder
from .fields import BY_LABEL, CLOCK_EVENTS, FIELDS, NAMES, OURS, OWNER, READ_AT, SERVING, is_blank
from .identity import Identity, facts, holder, identity, renamed
from .memory import DeviceMemory, clock_events

SOURCE, NODE_SOURCE = "dcgm", "node"
"""Series of an exporter, and those of an agent with the role *node*, whose readings are its drivers'."""
_CLAMPED_BELOW = 1.2
_MAX_GPUS = 256
_MAX_HOLDERS = 64
_EXPORTERS = ("DCGM_", "gpu_", "pcie_")


class GpuReport(msgspec.Struct, frozen=True):
    """What one page brought. `repeated`: it says what the last one said."""

    frames: tuple[Frame, ...]
    events: tuple[Event, ...]
    info: tuple[Info, ...]
    dropped: int
    repeated: bool


class _Cell(msgspec.Struct, frozen=True):
    """Where one value of a page goes. `which`: the code or the clock event that it counts."""

    subject: Subject
    signal: str
    factor: float
    which: str = ""


class DcgmPage:
    """Reads the pages of one exporter. Times are unix seconds. `host` names devices that have no UUID.

    `names` are all sample names of the page, `devices` the facts and `holders` the workloads by device, as last seen.
    `renewed_at` is when it last said something new, `renews_s` the time between the last two such pages.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, host: str = "") -> None:
        self.names: frozenset[str] = frozenset()
        self.devices: dict[str, dict[str, str]] = {}
        self.holders: dict[str, tuple[Holder, ...]] = {}
        self.renewed_at = math.nan
        self.renews_s = math.nan
        self._host = host
        self._reader = PageReader(NAMES, limits)
        self._layout = 0
        self._source = SOURCE
        self._cells: list[_Cell | None] = []
        self._uncounted = 0
        self._body = b""
        self._values: list[float] = []
        self._memory: dict[Subject, DeviceMemory] = {}

    @property
    def unmapped(self) -> frozenset[str]:
        """Names of the exporter that nothing here reads."""
        return frozenset(n for n in self.names - NAMES if n.startswith(_EXPORTERS))

    def read(self, body: bytes, at: float) -> GpuReport:
        """Read a page received at `at`. Never raises for bad text."""
        if body == self._body:
            return GpuReport((), (), (), 0, True)
        self._body = body
        reading = self._reader.read(body)
        self.names = reading.names
        info: tuple[Info, ...] = ()
        if reading.layout != self._layout:
            self._layout = reading.layout
            self._bind(reading.series)
            info = tuple(Info(Subject(gpu=key), at, self._facts(key)) for key in self.devices)
        elif _same(reading.values, self._values):
            return GpuReport((), (), (), 0, True)  # only its timestamps moved
        self._values = reading.values
        self.renews_s, self.renewed_at = at - self.renewed_at, at
        frames, events, dropped = self._frames(reading.values, at)
        return GpuReport(frames, events, info, reading.dropped + dropped + self._uncounted, False)

    def _frames(self, raws: Sequence[float], at: float) -> tuple[tuple[Frame, ...], tuple[Event, ...], int]:
        found: dict[Subject, dict[str, float]] = {}
        xids: dict[Subject, dict[str, float]] = {}
        clocks: dict[Subject, dict[str, float]] = {}
        dropped = 0
        for cell, raw in zip(self._cells, raws, strict=True):
            if cell is None or raw != raw:
                continue
            value = _checked(cell.signal, raw, cell.factor)
            if value != value:
                dropped += 1
            elif cell.which:
                counts = clocks if cell.signal == CLOCK_EVENTS else xids
                counts.setdefault(cell.subject, {})[cell.which] = value
            else:
                found.setdefault(cell.subject, {}).setdefault(cell.signal, value)
        frames: list[Frame] = []
        events: list[Event] = []
        for subject in {**found, **xids, **clocks}:
            values = found.get(subject, {})
            memory = self._memory.setdefault(subject, DeviceMemory(subject))
            values |= clock_events(clocks.get(subject, {}))
            events += memory.complete(values, xids.get(subject, {}), at)
            if values:
                row = np.array([list(values.values())])
                frames.append(Frame(subject, self._source, tuple(values), np.array([at]), row))
        return tuple(frames), tuple(events), dropped

    def _facts(self, key: str) -> dict[str, str]:
        """Facts with the holder: empty where there is none any more, a number where there are several."""
        held = self.holders.get(key, ())
        only = held[0] if len(held) == 1 else Holder()
        told = {"pod": only.pod, "namespace": only.namespace, "container": only.container}
        return self.devices[key] | told | {"holders": str(len(held)) if held else ""}

    # --- one layout ------------------------------------------------------------------------------------------------

    def _bind(self, series: Sequence[Series]) -> None:
        """Where each series of this layout goes; None for what has no device, or repeats another row."""
        self.devices, self._cells, self._uncounted = {}, [], 0
        self._source = NODE_SOURCE if any(one.name.startswith(OURS) for one in series) else SOURCE
        relabelled = any(renamed(one.labels) for one in series)
        known = [identity(one.labels, self._host) for one in series]
        cut = {who.board for who in known if who is not None and who.key != who.board}
        seen: set[tuple[Subject, str, str]] = set()
        held: dict[str, dict[Holder, None]] = {}
        for one, who in zip(series, known, strict=True):
            self._cells.append(None if who is None else self._cell(one, who, cut, seen))
            who_holds = holder(one.labels, relabelled=relabelled)
            if who is None or who_holds is None or who.key not in self.devices:
                continue
            mine = held.setdefault(who.key, {})
            if len(mine) < _MAX_HOLDERS:
                mine[who_holds] = None
        self.holders = {key: tuple(who) for key, who in held.items()}

    def _cell(self, one: Series, who: Identity, cut: set[str], seen: set[tuple[Subject, str, str]]) -> _Cell | None:
        field = FIELDS[one.name]
        key = who.board if field.board else who.key
        self._know(who.key, one.labels, who)
        if key != who.key:  # the board is known by its instances' rows, too
            of_board = {name: value for name, value in one.labels.items() if not name.startswith("GPU_I_")}
            self._know(key, of_board, Identity(who.board, key, who.weak))
        if key not in self.devices:
            self._uncounted += 1
            return None
        subject, which = Subject(gpu=key), one.labels.get(BY_LABEL.get(field.signal, ""), "")[:24]
        if field.signal in (OWNER, READ_AT) or (field.signal in BY_LABEL) != bool(which):
            return None
        if not field.mig and who.board in cut:
            return None  # missing, not idle
        if (subject, one.name, which) in seen:
            return None  # time slicing shows a device once for each pod
        seen.add((subject, one.name, which))
        return _Cell(subject, field.signal, field.factor, which)

    def _know(self, key: str, labels: Mapping[str, str], who: Identity) -> None:
        if key in self.devices or len(self.devices) < _MAX_GPUS:
            self.devices.setdefault(key, {}).update(facts(labels, who))


def _same(new: Sequence[float], old: Sequence[float]) -> bool:
    return len(new) == len(old) and all(a == b or (a != a and b != b) for a, b in zip(new, old, strict=True))


def _checked(signal: str, raw: float, factor: float) -> float:
    """The value in base units; NaN for a blank or an impossible one. MIG ratios come out a little above 1: clamped."""
    if is_blank(raw) or math.isinf(raw):
        return math.nan
    value = raw * factor
    if signal in SERVING:
        return value if value >= 0 else math.nan
    if signal.endswith("_ratio") and 1 < value <= _CLAMPED_BELOW:
        return 1.0
    return value if check_value(signal, value) else math.nan
