"""Asking Level Zero Sysman: one call, its handles, and what its errors mean.

A call that a device does not support, or that the agent may not make, is remembered and not made again.
"""

from __future__ import annotations

import ctypes as c
from typing import Any, TypeVar

from ..vendor import DeviceLostError, VendorError
from . import structs as z

S = TypeVar("S", bound=c.Structure)
MOST_HANDLES = 64
_REFUSALS = frozenset({z.NO_PERMISSION, z.NOT_AVAILABLE, z.UNSUPPORTED_VERSION, z.UNSUPPORTED})


class Sysman:
    """The loaded library; `refused` by call and handle."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self.refused: dict[tuple[str, int], int] = {}

    def call(self, name: str, handle: int | None, *out: Any) -> bool:
        """Make a call; False where it has no answer now, or never will have. Raises DeviceLostError or VendorError."""
        key = name, handle or 0
        if key in self.refused:
            return False
        function = getattr(self._loaded, name, None)
        if function is None:
            self.refused[key] = z.UNSUPPORTED
            return False
        code = function(*(() if handle is None else (c.c_void_p(handle),)), *out) & 0xFFFFFFFF
        if code in (z.DEVICE_LOST, z.NEEDS_RESET):
            raise DeviceLostError(f"{name}: {'the device is lost' if code == z.DEVICE_LOST else 'needs a reset'}")
        if code == z.UNINITIALIZED:
            raise VendorError(f"Level Zero Sysman: {name}: not initialised")
        if code in _REFUSALS:
            self.refused[key] = code
        return bool(code == 0)

    def handles(self, name: str, of: int | None) -> list[int]:
        """The handles that a call lists: asked for their number, then for themselves."""
        count = c.c_uint32(0)
        if not self.call(name, of, c.byref(count), None) or not count.value:
            return []
        count.value = min(count.value, MOST_HANDLES)
        found = (c.c_void_p * count.value)()
        if not self.call(name, of, c.byref(count), found):
            return []
        return [handle for handle in found[: count.value] if handle]

    def ask(self, name: str, handle: int, kind: type[S]) -> S | None:
        """The struct that a call fills in."""
        told = kind()
        stype = getattr(kind, "STYPE", None)
        if stype is not None:
            told.stype = stype
        return told if self.call(name, handle, c.byref(told)) else None

    def processes(self, device: int) -> list[z.ProcessState] | None:
        """The processes on a device; None where it does not say."""
        name = "zesDeviceProcessesGetState"
        count = c.c_uint32(0)
        if not self.call(name, device, c.byref(count), None):
            return None
        count.value = min(count.value * 2 + 5, 256)  # there may be more by the second call
        found = (z.ProcessState * count.value)()
        for one in found:
            one.stype = z.ProcessState.STYPE
        if not self.call(name, device, c.byref(count), found):
            return None
        return list(found[: count.value])
