"""What nvidia-smi prints for people: its table, and the report of `nvidia-smi -q`, as looks at each device.

Only numbers and yes or no are taken; names of devices and of processes are read over. `N/A`, `ERR!` and blanks are missing.
A clock event reason is true of one moment: its ratio is 1 or 0. A date begins a new look; without any, all is one look.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import numpy as np

from ..catalog import check_value
from ..model import Batch, Frame, Info, Subject

MAX_LINES = 200_000
MAX_DEVICES = 256
MIB = 1024.0**2
_MARK = re.compile(rb"=+NVSMI LOG=+|\| NVIDIA-SMI +[\d.]+")
_DATE = re.compile(r"([A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d{2}:\d{2}:\d{2} \d{4})")
_PCI = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_ROW = re.compile(rf"^\|\s+(\d{{1,3}})\s+.{{0,80}}?\|\s*{_PCI}\s+\w+\s*\|\s*(\S+)")
_VALUES = re.compile(
    r"^\|\s*\S+\s+(\d{1,3})C\s+\S+\s+(\S+)\s*/\s*(\S+)\s*\|\s*(\d{1,9})MiB\s*/\s*(\d{1,9})MiB\s*\|\s*(\S+)"
)
_SECTION = re.compile(rf"^GPU ({_PCI})\s*$")
_PAIR = re.compile(r"^(\s+)([A-Za-z][\w ./-]{0,60}?)\s*:\s(.{1,80}?)\s*$")
_HEAD = re.compile(r"^(\s+)([A-Z][\w ./-]{0,60}?)\s*$")

_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")
_REASONS = frozenset({"Clocks Event Reasons", "Clocks Throttle Reasons"})
_NUMBERS: dict[tuple[str, str], tuple[str, float]] = {
    ("Temperature", "GPU Current Temp"): ("gpu_temperature_celsius", 1.0),
    ("GPU Power Readings", "Average Power Draw"): ("gpu_power_watts", 1.0),
    ("GPU Power Readings", "Instantaneous Power Draw"): ("gpu_power_watts", 1.0),
    ("GPU Power Readings", "Power Draw"): ("gpu_power_watts", 1.0),
    ("GPU Power Readings", "Current Power Limit"): ("gpu_power_limit_watts", 1.0),
    ("Power Readings", "Power Draw"): ("gpu_power_watts", 1.0),
    ("Power Readings", "Enforced Power Limit"): ("gpu_power_limit_watts", 1.0),
    ("Utilization", "Gpu"): ("gpu_util_ratio", 0.01),
    ("Utilization", "GPU"): ("gpu_util_ratio", 0.01),
    ("Clocks", "SM"): ("gpu_sm_clock_hertz", 1e6),
    ("Max Clocks", "SM"): ("gpu_sm_clock_max_hertz", 1e6),
    ("FB Memory Usage", "Total"): ("gpu_memory_total_bytes", MIB),
    ("FB Memory Usage", "Used"): ("gpu_memory_used_bytes", MIB),
}
"""(section, key) of the report → signal and factor."""
_YES = {
    ("Remapped Rows", "Pending"): "gpu_remap_pending",
    ("Remapped Rows", "Remapping Failure Occurred"): "gpu_remap_failed",
}


def is_smi(head: bytes) -> bool:
    """Whether a text shows what nvidia-smi prints."""
    return _MARK.search(head) is not None


class SmiText:
    """`items`: one batch for each look; `devices`: how many different ones."""

    def __init__(self, host: str = "host") -> None:
        self.items: list[tuple[float, Batch]] = []
        self.dated = False
        self._host = Subject(host=host)
        self._now: dict[str, dict[str, float]] = {}
        self._at = math.nan
        self._known: set[str] = set()

    @property
    def devices(self) -> int:
        """How many different devices were shown."""
        return len(self._known)

    def read(self, lines: Iterable[bytes], written_at: float) -> None:
        """Read all of it. `written_at`: the time of what has no date."""
        device, sections, row = "", list[tuple[int, str]](), ""
        for line in _texts(lines):
            date = _DATE.search(line)
            if date and line.startswith((date[1], "Timestamp")):
                self._finish(written_at)
                self._at, self.dated = _unix(date[1]), True
            elif found := _SECTION.match(line):
                device, sections = found[1].lower(), []
            elif found := _ROW.match(line):
                row = found[1]
                self._put(row, "gpu_ecc_uncorrected_total", _number(found[2]))
            elif row and (found := _VALUES.match(line)):
                self._row(row, found)
                row = ""
            elif device:
                self._report(device, line, sections)
        self._finish(written_at)

    def _row(self, device: str, found: re.Match[str]) -> None:
        celsius, power, limit, used, total, busy = found.groups()
        self._put(device, "gpu_temperature_celsius", _number(celsius))
        self._put(device, "gpu_power_watts", _number(power))
        self._put(device, "gpu_power_limit_watts", _number(limit))
        self._put(device, "gpu_memory_used_bytes", _number(used) * MIB)
        self._put(device, "gpu_memory_total_bytes", _number(total) * MIB)
        self._put(device, "gpu_util_ratio", _number(busy) * 0.01)

    def _report(self, device: str, line: str, sections: list[tuple[int, str]]) -> None:
        """One line below a device: a section that opens, or a key with its value."""
        pair = _PAIR.match(line)
        head = None if pair else _HEAD.match(line)
        matched = pair or head
        if matched is None:
            return
        depth = len(matched[1])
        while sections and sections[-1][0] >= depth:
            sections.pop()
        if head is not None:
            sections.append((depth, head[2]))
            return
        assert pair is not None
        names = [name for _, name in sections]
        section, key, value = (names[-1] if names else ""), pair[2], pair[3]
        if section in _REASONS or (key in _SLOWDOWNS and _REASONS & set(names)):
            self._reason(device, key, value)
            sections.append((depth, key))  # hardware reasons are set in below their sum
        elif (section, key) in _NUMBERS:
            signal, factor = _NUMBERS[section, key]
            self._put(device, signal, _number(value) * factor)
        elif (section, key) in _YES and value in ("Yes", "No"):
            self._put(device, _YES[section, key], float(value == "Yes"))

    def _reason(self, device: str, key: str, value: str) -> None:
        if value not in ("Active", "Not Active"):
            return
        now = float(value == "Active")
        if key in _SLOWDOWNS:
            self._raise(device, "gpu_throttled_ratio", now)
        if "Thermal" in key:
            self._raise(device, "gpu_throttled_thermal_ratio", now)
        elif "Brake" in key:
            self._raise(device, "gpu_throttled_brake_ratio", now)
        elif key == "SW Power Cap":
            self._raise(device, "gpu_throttled_power_ratio", now)

    def _raise(self, device: str, signal: str, value: float) -> None:
        self._put(device, signal, max(value, self._now.get(device, {}).get(signal, 0.0)))

    def _put(self, device: str, signal: str, value: float) -> None:
        if value == value and check_value(signal, value) and (device in self._known or len(self._known) < MAX_DEVICES):
            self._known.add(device)
            self._now.setdefault(device, {})[signal] = value

    def _finish(self, written_at: float) -> None:
        """What was collected becomes one look."""
        if not self._now:
            return
        at = self._at if self._at == self._at else written_at
        at = 0.0 if at != at else at
        frames, info = [], []
        for index, (device, values) in enumerate(self._now.items()):
            subject = Subject(gpu=f"gpu{device}" if device.isdigit() else device)
            row = np.array([list(values.values())])
            frames.append(Frame(subject, "nvml", tuple(values), np.array([at]), row))
            info.append(Info(subject, at, {"index": device if device.isdigit() else str(index)}))
        self.items.append((at, Batch("nvidia-smi", "gpu", self._host, at, frames=tuple(frames), info=tuple(info))))
        self._now = {}


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    for n, line in enumerate(lines):
        if n >= MAX_LINES:
            return
        yield line[:1000].decode("utf-8", "replace").rstrip()


def _number(text: str) -> float:
    """The number before a unit; NaN for `N/A`, `ERR!` and whatever else is none."""
    found = re.match(r"-?\d{1,12}(?:\.\d{1,6})?", text)
    return float(found[0]) if found else math.nan


def _unix(text: str) -> float:
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan
