"""MIG: a board cut into instances. Each GPU instance is a subject of its own, `UUID/instance`, as dcgm-exporter numbers them.

Board values (power, clocks, temperature, errors) belong to the board; memory, GPM and processes are the instance's.
Several compute instances of one GPU instance share its memory and are one subject. Numbers of instances have holes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .facts import clean
from .library import CLOSED, GONE, Library, NvmlError

MOST = 64
"""More than any board can be cut into."""


class Instance(msgspec.Struct, frozen=True):
    """One GPU instance: the handle of its first MIG device, and the UUIDs of all."""

    number: int
    handle: Any
    uuids: tuple[str, ...]
    name: str = ""

    @property
    def identity(self) -> tuple[int, tuple[str, ...]]:
        """What tells whether it is still the same one."""
        return self.number, self.uuids


def is_on(library: Library, board: Any) -> bool:
    """Whether the board is cut into instances now. Raises NvmlError where the device or the driver is gone."""
    try:
        current, _pending = library.ask("nvmlDeviceGetMigMode", board)
    except NvmlError as error:
        if error.code in GONE or error.code in CLOSED:
            raise
        return False
    return bool(current)


def instances(library: Library, board: Any) -> tuple[Instance, ...]:
    """The GPU instances of a board, by number; holes are skipped. Raises NvmlError where device or driver are gone."""
    try:
        most = min(int(library.ask("nvmlDeviceGetMaxMigDeviceCount", board)), MOST)
    except NvmlError as error:
        if error.code in GONE or error.code in CLOSED:
            raise
        most = MOST
    found: dict[int, Instance] = {}
    for index in range(most):
        try:
            handle = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", board, index)
            number = int(library.ask("nvmlDeviceGetGpuInstanceId", handle))
        except NvmlError as error:
            if error.code in GONE or error.code in CLOSED:
                raise
            continue  # a hole
        uuid = _text(library, "nvmlDeviceGetUUID", handle)
        before = found.get(number)
        if before is not None:
            found[number] = msgspec.structs.replace(before, uuids=(*before.uuids, uuid))
        else:
            found[number] = Instance(number, handle, (uuid,), _text(library, "nvmlDeviceGetName", handle))
    return tuple(found[number] for number in sorted(found))


def _text(library: Library, call: str, handle: Any) -> str:
    try:
        return clean(library.ask(call, handle))
    except NvmlError as error:
        if error.code in GONE or error.code in CLOSED:
            raise
        return ""
