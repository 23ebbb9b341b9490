"""What is remembered of one device from page to page: growth of counters, the highest clock, the last XID."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....model import Event, Subject
from ...growth import Growth
from .fields import BRAKE_NS, FREE, POWER_NS, REASONS, SLOWDOWN_BITS, SYNC_NS, THERMAL_NS, UNNAMED_BITS

_THERMAL_EVENTS = ("sw_thermal", "hw_thermal")
_SLOW_EVENTS = (*_THERMAL_EVENTS, "hw_slowdown", "hw_power_brake")
_COUNTERS = (POWER_NS, SYNC_NS, BRAKE_NS, *THERMAL_NS)


def clock_events(counts: Mapping[str, float]) -> dict[str, float]:
    """Shares of what the exporter counted in its window (five minutes by default), reasons such as idle included: at least so
    much of it was slowed down. Empty without counts."""
    whole = sum(counts.values())
    if not whole > 0:
        return {}
    shares = {
        "gpu_throttled_thermal_ratio": max(counts.get(name, 0.0) for name in _THERMAL_EVENTS) / whole,
        "gpu_throttled_brake_ratio": counts.get("hw_power_brake", 0.0) / whole,
        "gpu_throttled_power_ratio": counts.get("power_cap", counts.get("sw_power_cap", 0.0)) / whole,
        "gpu_throttled_ratio": max(counts.get(name, 0.0) for name in _SLOW_EVENTS) / whole,
    }
    return {name: min(1.0, share) for name, share in shares.items()}


class DeviceMemory:
    """One device or instance."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._clock_max = math.nan
        self._code = math.nan
        self._xids = 0.0
        self._told_xids = math.nan
        self._counts: dict[str, float] = {}
        self._slowed = {name: Growth() for name in _COUNTERS}

    def complete(self, values: dict[str, float], xid_counts: Mapping[str, float], at: float) -> list[Event]:
        """Replace what only serves to compute by the signals that follow. Returns the XIDs that are new."""
        free, used = values.pop(FREE, math.nan), values.get("gpu_memory_used_bytes", math.nan)
        if free == free and used == used:
            values.setdefault("gpu_memory_total_bytes", used + free + values.get("gpu_memory_reserved_bytes", 0.0))
        self._throttled(values, at)
        clock, told = (values.get(f"gpu_sm_clock{end}", math.nan) for end in ("_hertz", "_max_hertz"))
        known = [value for value in (clock, told, self._clock_max) if value == value]
        if known and "gpu_sm_clock_hertz" in values:
            self._clock_max = values["gpu_sm_clock_max_hertz"] = max(known)
        return [Event(self.subject, at, "xid", {"code": code}) for code in self._new_xids(values, xid_counts)]

    def _throttled(self, values: dict[str, float], at: float) -> None:
        """Shares of time slowed down: growth of the nanosecond counters; the mask of this moment for what has none."""
        shares: dict[str, float] = {}
        counted = {name for name in _COUNTERS if name in values}
        for name in counted:
            share = self._slowed[name].per_second(values.pop(name), at) * 1e-9
            if share == share:
                shares[name] = min(share, 1.0)
        thermal = max((shares[name] for name in THERMAL_NS if name in shares), default=math.nan)
        found = {
            "gpu_throttled_thermal_ratio": thermal,
            "gpu_throttled_brake_ratio": shares.get(BRAKE_NS, math.nan),
            "gpu_throttled_power_ratio": shares.get(POWER_NS, math.nan),
            "gpu_throttled_sync_ratio": shares.get(SYNC_NS, math.nan),
        }
        slowed = [thermal, found["gpu_throttled_brake_ratio"]]
        reasons = values.pop(REASONS, math.nan)
        if reasons == reasons:
            bits = UNNAMED_BITS if counted & set(THERMAL_NS) else SLOWDOWN_BITS
            now = float(bool(int(reasons) & bits))
            slowed.append(now if now or bits == SLOWDOWN_BITS else math.nan)
        known = [share for share in slowed if share == share]
        if known:
            found["gpu_throttled_ratio"] = max(known)
        values.update({name: share for name, share in found.items() if share == share and name not in values})

    def _new_xids(self, values: dict[str, float], counts: Mapping[str, float]) -> list[str]:
        """Codes of XIDs since the last page. The last code is sticky: only its change says something.

        The count that some exporters show covers the last minutes and falls again; its growth is what counts, and what it
        holds at the first page: that is as recent as its window.
        """
        code, told = values.get("gpu_xid_last_code", math.nan), values.get("gpu_xid_total", math.nan)
        fresh: list[str] = []
        if code == code:
            changed = self._code == self._code and code not in (self._code, 0)
            if changed if told != told else told > self._told_xids:  # a true count also tells the same code once more
                fresh.append(str(int(code)))
            self._code = code
        for which, count in counts.items():
            if count > self._counts.get(which, 0.0) and which not in fresh:
                fresh.append(which)
        self._counts = dict(counts)
        self._told_xids = told
        self._xids += len(fresh)
        if told != told and (code == code or counts):
            values["gpu_xid_total"] = self._xids
        return fresh
