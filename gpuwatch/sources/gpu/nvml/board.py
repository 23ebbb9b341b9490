"""A whole GPU: the board, the instances it is cut into, what it says of itself, and whether it still answers.

A board is known by its UUID, whatever its index. One that does not answer is *down*: its readings are missing and
`gpu_up` is 0, until it answers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....model import Subject
from ..pace import PROCESSES_S, USAGE_HZ, Pace, Rates
from . import mig
from .device import Device
from .facts import Facts
from .gpm import Request
from .library import CLOSED, NO_PERMISSION, Library, NvmlError

SILENT_LOOKS = 3
"""So many looks without a single answer, and a board is down, whatever its error is called."""
_SPREAD_OVER = 8


class Board:
    """One GPU. Raises NvmlError on construction where it does not answer."""

    def __init__(
        self, library: Library, handle: Any, uuid: str, index: int, request: Request, rates: Rates
    ) -> None:  # fmt: skip
        self._library = library
        self._request = request
        self.handle = handle
        self.uuid = uuid
        self.index = index
        self.subject = Subject(gpu=uuid)
        self.down = ""  # why it does not answer
        self.is_gone = False  # the driver said that this board is lost, which is no word on the others
        self.silent_looks = 0
        spread = index % _SPREAD_OVER / _SPREAD_OVER
        self.usage = Pace(1 / min(rates.usage_hz, USAGE_HZ))
        self.slow = Pace(rates.slow_every_s, spread)
        self.processes = Pace(max(rates.processes_every_s, PROCESSES_S), spread)
        facts = Facts(library, handle)
        self._facts = facts.of()
        self._denied = sorted(call for call, code in facts.refused.items() if code == NO_PERMISSION)
        self.device = Device(library, handle, self.subject, request)
        self.is_mig = False
        self.instances: dict[int, Device] = {}
        self._cut: tuple[mig.Instance, ...] = ()
        self.look_for_instances()

    def devices(self) -> Iterator[Device]:
        """The board and its instances."""
        yield self.device
        yield from self.instances.values()

    def look_for_instances(self) -> bool:
        """Find the instances anew; True where they are others than before. Raises NvmlError for a lost board."""
        was_mig, self.is_mig = self.is_mig, mig.is_on(self._library, self.handle)
        found = mig.instances(self._library, self.handle) if self.is_mig else ()
        if was_mig == self.is_mig and [i.identity for i in found] == [i.identity for i in self._cut]:
            return False
        if was_mig != self.is_mig:  # the board refuses other things now than before
            self.device.close()
            self.device = Device(self._library, self.handle, self.subject, self._request)
        for device in self.instances.values():
            device.close()
        self._cut = found
        self.instances = {}
        for instance in found:
            self._add(instance)
        return True

    def facts(self) -> Iterator[tuple[Subject, dict[str, str]]]:
        """What the board and its instances are, with what they would not say."""
        notes = self.device.notes()
        denied = ", ".join(filter(None, (*self._denied, notes.get("no_permission", ""))))
        if denied:
            notes["no_permission"] = denied[:250]
        mine = {"index": str(self.index), "mig": "on" if self.is_mig else "off"}
        yield self.subject, {**self._facts, **mine, **notes}
        for instance in self._cut:
            device = self.instances.get(instance.number)
            if device is not None:
                shared = {key: self._facts[key] for key in ("driver", "architecture") if key in self._facts}
                yield (
                    device.subject,
                    shared
                    | device.notes()
                    | {
                        "model": instance.name or self._facts.get("model", ""),
                        "index": str(self.index),
                        "mig_uuid": ", ".join(filter(None, instance.uuids))[:250],
                        "board": self.uuid,
                    },
                )

    @property
    def peak_dram(self) -> float:
        """Peak memory bandwidth in bytes/s; NaN where it is not known."""
        return float(self._facts.get("peak_dram_bytes_per_second", "nan"))

    def close(self) -> None:
        """Give back what was allocated."""
        for device in self.devices():
            device.close()

    def _add(self, instance: mig.Instance) -> None:
        subject = Subject(gpu=f"{self.uuid}/{instance.number}")
        try:
            made = Device(self._library, instance.handle, subject, self._request, instance.number, self.handle)
        except NvmlError as error:
            if error.code in CLOSED:
                raise
            return  # destroyed while we looked
        self.instances[instance.number] = made
