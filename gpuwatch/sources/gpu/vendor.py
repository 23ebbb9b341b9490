"""Devices of a vendor whose driver's library is asked call by call: the source that AMD's and Intel's share.

A `Library` finds the devices, a `Device` answers two lanes: *fast* (activity, clocks, power, memory) and *slow* (errors,
links, processes, whatever is expensive). A device that is lost is an event and `gpu_up` 0, and is looked for again, ever
more rarely. Calls run in a thread of their own. Neither vendor's source has been run on hardware; each device says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from ...model import Batch, Event, Frame, Info, Subject
from ..poll import Clock
from .believable import drop_impossible
from .driver_thread import DriverThread, StalledError
from .pace import PROCESSES_S, Backoff, Pace

PATIENCE_S = 0.5
UNVERIFIED = {"verified_on_hardware": "no"}
Values = dict[str, float]


class VendorError(Exception):
    """The library does not start, or does not answer any more."""


class DeviceLostError(Exception):
    """The device does not answer any more; others may."""


class Device(Protocol):
    """One device. `uuid` is its stable name."""

    @property
    def uuid(self) -> str: ...  # noqa: D102
    def facts(self) -> Mapping[str, str]: ...  # noqa: D102

    def read(self, at: float, slow: bool) -> Values:
        """Readings at `at` (unix seconds). Raises DeviceLostError or VendorError."""
        ...


class Library(Protocol):
    """A vendor's library."""

    def open(self) -> list[Device]:
        """Start it and find the devices. Raises VendorError."""
        ...

    def close(self) -> None: ...  # noqa: D102


class _Said(msgspec.Struct, frozen=True):
    frames: tuple[Frame, ...] = ()
    events: tuple[Event, ...] = ()
    info: tuple[Info, ...] = ()
    dropped: int = 0
    error: str | None = None


class VendorSource:
    """Polls all devices of one vendor; `name` is the source's and that of its series (`NAME` and `NAME-slow`)."""

    role = "gpu"

    def __init__(
        self, name: str, library: Library, clock: Clock, host: str, hertz: float = 1.0,
        slow_every_s: float = PROCESSES_S, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self.name = name
        self.subject = Subject(host=host)
        self.interval_s = 1 / hertz
        self._library = library
        self._clock = clock
        self._patience_s = patience_s
        self._thread: DriverThread[_Said] = DriverThread(f"gpuwatch-{name}")
        self._retry = Backoff(1.0, 60.0)
        self._slow = Pace(max(slow_every_s, PROCESSES_S))
        self._devices: dict[str, Device] = {}
        self._away: dict[str, float] = {}
        self._told: dict[str, Mapping[str, str]] = {}
        self._why: str | None = "not started"

    async def poll(self, now: float) -> Batch:
        """Look once; or hear what the look that is under way has brought."""
        try:
            said = await self._thread.look(self.look, now, self._patience_s)
        except StalledError as stalled:
            said = _Said(error=str(stalled))
        return Batch(
            self.name, self.role, self.subject, self._clock.now(), error=said.error,
            frames=said.frames, events=said.events, info=said.info, dropped=said.dropped,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Stop the library; a driver that is silent is left behind."""
        await self._thread.close(self._library.close, self._patience_s)

    def devices(self) -> dict[str, Mapping[str, str]]:
        """What each device said of itself, by its UUID."""
        return dict(self._told)

    def look(self) -> _Said:
        """Ask everything that is due. In the driver's thread."""
        now = self._clock.now()
        events: list[Event] = []
        if (self._why or self._away) and self._retry.due(now):
            self._open(now)
        if self._why:
            return _Said(self._all_down(now), error=self._why)
        slow = self._slow.due(now)
        frames: list[Frame] = []
        info: list[Info] = []
        dropped = 0
        for uuid, device in self._devices.items():
            at = self._clock.now()
            try:
                values = device.read(at, slow=False)
                later = device.read(at, slow=True) if slow else {}
            except DeviceLostError as error:
                if uuid not in self._away:
                    self._away[uuid] = at
                    events.append(Event(Subject(gpu=uuid), at, "gpu_lost", {"error": str(error)[:200]}))
                continue
            except VendorError as error:
                self._why = str(error)
                self._retry.failed(now)
                return _Said(self._all_down(now), error=self._why)
            dropped += drop_impossible(values) + drop_impossible(later)
            since = self._away.pop(uuid, None)
            if since is not None:
                events.append(Event(Subject(gpu=uuid), at, "gpu_returned", {"away_s": f"{at - since:.0f}"}))
            frames.append(_frame(uuid, self.name, at, {"gpu_up": 1.0} | values))
            if later:
                frames.append(_frame(uuid, f"{self.name}-slow", at, later))
                self._describe(device, at, info)
        if not self._away:
            self._retry = Backoff(1.0, 60.0)
        frames += (_frame(uuid, self.name, now, {"gpu_up": 0.0}) for uuid in self._away)
        return _Said(tuple(frames), tuple(events), tuple(info), dropped)

    def _open(self, now: float) -> None:
        """Start the library anew: it is the only way to see devices that have come or returned."""
        self._retry.failed(now)
        if self._why is None:
            self._library.close()
        try:
            found = {device.uuid: device for device in self._library.open()}
        except VendorError as error:
            self._why = str(error)
            return
        self._why = None
        self._slow = Pace(self._slow.every_s)
        for uuid in self._devices.keys() - found.keys():
            self._away.setdefault(uuid, now)
        self._devices = found

    def _describe(self, device: Device, at: float, info: list[Info]) -> None:
        facts = {**device.facts(), **UNVERIFIED}
        if self._told.get(device.uuid) != facts:
            self._told[device.uuid] = facts
            info.append(Info(Subject(gpu=device.uuid), at, facts))

    def _all_down(self, now: float) -> tuple[Frame, ...]:
        return tuple(_frame(uuid, self.name, now, {"gpu_up": 0.0}) for uuid in self._devices)


def _frame(uuid: str, source: str, at: float, values: Values) -> Frame:
    return Frame(Subject(gpu=uuid), source, tuple(values), np.array([at]), np.array([list(values.values())]))
