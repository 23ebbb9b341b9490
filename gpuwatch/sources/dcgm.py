"""GPU readings from a dcgm-exporter page: by line, in base units, one Frame a device.

A page that equals the last one is a repeat (the exporter renews its values every 30 s by default): it is counted and
brings no samples, so that the age of each series grows. Blank values and broken lines are dropped and counted, time
slicing's repeated rows are read once. A MIG instance is a subject of its own (`UUID/instance`); board values go to the
device. What the exporter does not show stays absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..catalog import check_value
from ..exposition import DEFAULT_LIMITS, Limits, Series
from ..exposition_plan import PageReader
from ..model import Batch, Event, Frame, Info, Subject
from .dcgm_fields import FIELDS, FREE, LABELS, NAMES, REASONS, RESERVED, SLOWDOWN_BITS, THROTTLED_NS, is_blank
from .poll import Clock
from .scrape_client import ScrapeClient, ScrapeError

SOURCE = "dcgm"
_CLAMPED_BELOW = 1.2
_MAX_GPUS = 256


class GpuReport(msgspec.Struct, frozen=True):
    """What one page brought. `repeated`: it equals the last one."""

    frames: tuple[Frame, ...]
    events: tuple[Event, ...]
    info: tuple[Info, ...]
    dropped: int
    repeated: bool


class _Cell(msgspec.Struct, frozen=True):
    """Where one value of a page goes."""

    subject: Subject
    signal: str
    factor: float


class _Device:
    """What is remembered of one device or instance."""

    def __init__(self) -> None:
        self.clock_max = math.nan
        self.xid = math.nan
        self.xids = 0.0
        self.throttled_ns = math.nan
        self.at = math.nan


class DcgmPage:
    """Reads the pages of one exporter. Times are unix seconds."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._reader = PageReader(NAMES, limits)
        self._layout = 0
        self._cells: list[_Cell | None] = []
        self._info: dict[Subject, dict[str, str]] = {}
        self._last = b""
        self._devices: dict[Subject, _Device] = {}

    def read(self, body: bytes, at: float) -> GpuReport:
        """Read a page received at `at`. Never raises for bad text."""
        if body == self._last:
            return GpuReport((), (), (), 0, True)
        self._last = body
        reading = self._reader.read(body)
        info: tuple[Info, ...] = ()
        if reading.layout != self._layout:
            self._layout = reading.layout
            self._bind(reading.series)
            info = tuple(Info(subject, at, facts) for subject, facts in self._info.items())
        found: dict[Subject, dict[str, float]] = {}
        dropped = reading.dropped
        for cell, raw in zip(self._cells, reading.values, strict=True):
            if cell is None or raw != raw:
                continue
            value = _checked(cell.signal, raw, cell.factor)
            if value != value:
                dropped += 1
            else:
                found.setdefault(cell.subject, {}).setdefault(cell.signal, value)
        frames: list[Frame] = []
        events: list[Event] = []
        for subject, values in found.items():
            device = self._devices.setdefault(subject, _Device())
            events += _complete(subject, values, device, at)
            names = tuple(values)
            frames.append(Frame(subject, SOURCE, names, np.array([at]), np.array([list(values.values())])))
        return GpuReport(tuple(frames), tuple(events), info, dropped, False)

    def _bind(self, series: Sequence[Series]) -> None:
        """Where each series of this layout goes; None for what has no device, or repeats another row."""
        self._cells, self._info = [], {}
        seen: set[tuple[Subject, str]] = set()
        for one in series:
            uuid = one.labels.get("UUID") or one.labels.get("uuid") or one.labels.get("gpu_uuid", "")
            instance = one.labels.get("GPU_I_ID", "")
            field = FIELDS[one.name]
            subject = Subject(gpu=uuid if field.board or not instance else f"{uuid}/{instance}")
            known = subject in self._info or len(self._info) < _MAX_GPUS
            if not uuid or (subject, one.name) in seen or not known:
                self._cells.append(None)
                continue
            seen.add((subject, one.name))
            facts = self._info.setdefault(subject, {})
            facts.update({ours: one.labels[key] for key, ours in LABELS.items() if one.labels.get(key)})
            self._cells.append(_Cell(subject, field.signal, field.factor))


class DcgmSource:
    """Polls a dcgm-exporter."""

    role = "gpu"

    def __init__(self, url: str, clock: Clock, client: ScrapeClient | None = None, hertz: float = 1.0) -> None:
        parts = urlsplit(url)
        self.name = f"dcgm:{parts.netloc}"
        self.subject = Subject(host=parts.hostname or parts.netloc)
        self.interval_s = 1 / hertz
        self.repeats = 0
        self._clock = clock
        self._client = client or ScrapeClient(f"{parts.scheme}://{parts.netloc}")
        self._path = parts.path if parts.path.strip("/") else "/metrics"
        self._page = DcgmPage()

    async def poll(self, now: float) -> Batch:
        """Ask once. Raises ScrapeError."""
        response = await self._client.get(self._path)
        if response.status != 200:
            raise ScrapeError("status", f"HTTP {response.status}")
        at = self._clock.now()
        report = self._page.read(response.body, at)
        self.repeats += report.repeated
        return Batch(
            self.name, self.role, self.subject, at, response.took_s,
            frames=report.frames, events=report.events, info=report.info, dropped=report.dropped,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _checked(signal: str, raw: float, factor: float) -> float:
    """The value in base units; NaN for a blank or an impossible one. MIG ratios come out a little above 1: clamped."""
    if is_blank(raw) or math.isinf(raw):
        return math.nan
    value = raw * factor
    if signal in (FREE, RESERVED, REASONS, THROTTLED_NS):
        return value if value >= 0 else math.nan
    if signal.endswith("_ratio") and 1 < value <= _CLAMPED_BELOW:
        return 1.0
    return value if check_value(signal, value) else math.nan


def _complete(subject: Subject, values: dict[str, float], device: _Device, at: float) -> list[Event]:
    """Replace what only serves to compute by the signals that follow; an XID that is new is an event."""
    free, reserved = values.pop(FREE, math.nan), values.pop(RESERVED, 0.0)
    used = values.get("gpu_memory_used_bytes", math.nan)
    if free == free and used == used:
        values.setdefault("gpu_memory_total_bytes", used + free + reserved)
    _throttled(values, device, at)
    clock = values.get("gpu_sm_clock_hertz", math.nan)
    told = values.get("gpu_sm_clock_max_hertz", math.nan)
    known = [value for value in (clock, told, device.clock_max) if value == value]
    if known:
        device.clock_max = values["gpu_sm_clock_max_hertz"] = max(known)
    code = values.get("gpu_xid_last_code", math.nan)
    if code != code:
        return []
    before, device.xid = device.xid, code
    fresh = before == before and code not in (before, 0)
    device.xids += fresh
    values["gpu_xid_total"] = device.xids
    return [Event(subject, at, "xid", {"code": str(int(code))})] if fresh else []


def _throttled(values: dict[str, float], device: _Device, at: float) -> None:
    """Share of time slowed down: from the nanosecond counter where it is there, else from the reasons of this moment."""
    slowed_ns, reasons = values.pop(THROTTLED_NS, math.nan), values.pop(REASONS, math.nan)
    if slowed_ns == slowed_ns:
        grown_ns = slowed_ns - device.throttled_ns
        if grown_ns >= 0 and at > device.at:
            values["gpu_throttled_ratio"] = min(grown_ns * 1e-9 / (at - device.at), 1.0)
        device.throttled_ns, device.at = slowed_ns, at
    elif reasons == reasons:
        values["gpu_throttled_ratio"] = float(bool(int(reasons) & SLOWDOWN_BITS))
