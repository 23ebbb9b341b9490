"""XID and other device events, waited for in a thread of their own: the driver tells them once, and only from now on.

The wait lets the interpreter go. Events come through a bounded queue, whatever the burst; what is cut is counted. The
thread ends by itself when it is told to, or when the library has been stopped under it, and frees its event set.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from ....model import Event, Subject
from .library import CLOSED, FUNCTION_NOT_FOUND, NOT_FOUND, TIMEOUT, Library, NvmlError

KINDS = {
    0x2: "double_bit_ecc", 0x8: "xid", 0x100: "mig_changed", 0x400: "page_retired", 0x4000: "unavailable",
    0x8000: "recovery_action",
}  # fmt: skip
"""What is asked for, by bit. Single-bit errors, clocks and power states are frequent, and counters tell them better."""
WAIT_MS = 500
WAITING_EVENTS = 256
LONGEST_PAUSE_S = 30.0
_BURST = WAITING_EVENTS
_NO_INSTANCE = 0xFFFFFFFF


class DeviceEvent(msgspec.Struct, frozen=True):
    """One event: device by UUID (empty: not to be told), kind, and its number: the XID, or the recovery action."""

    gpu: str
    kind: str
    number: int
    instance: int | None = None


class EventThread:
    """Watches devices for events, from `start` to `stop`. `handles` by UUID."""

    def __init__(self, binding: Any, handles: Mapping[str, Any]) -> None:
        self._library = Library(binding)
        self._by_address = {address(handle): uuid for uuid, handle in handles.items()}
        self._alone = next(iter(handles)) if len(handles) == 1 else ""
        self._waiting: deque[DeviceEvent] = deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self.registered: set[str] = set()
        self.refused: dict[str, int] = {}
        self._set: Any = None
        try:
            self._set = self._library.ask("nvmlEventSetCreate")
        except NvmlError as error:
            self.refused = dict.fromkeys(handles, error.code)
            return
        for uuid, handle in handles.items():
            self._register(uuid, handle)

    def start(self) -> None:
        """Begin to wait, where any device tells events."""
        if self.registered:
            self._thread = threading.Thread(target=self._run, name="gpuwatch-xid", daemon=True)
            self._thread.start()
        else:
            self._free()

    def stop(self, patience_s: float = 2 * WAIT_MS / 1000) -> None:
        """End the wait, for at most `patience_s`; a thread that the driver holds is left to end by itself."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(patience_s)
            self._thread = None

    def take(self) -> tuple[list[DeviceEvent], int]:
        """What has happened since the last call, and how many events were cut."""
        with self._lock:
            found, dropped = list(self._waiting), self._dropped
            self._waiting.clear()
            self._dropped = 0
        return found, dropped

    def _register(self, uuid: str, handle: Any) -> None:
        wanted = sum(KINDS)
        try:
            supported = int(self._library.ask("nvmlDeviceGetSupportedEventTypes", handle))
        except NvmlError as error:
            supported = wanted if error.code == FUNCTION_NOT_FOUND else 0x8
        for mask in dict.fromkeys((wanted & supported, 0x8)):
            if not mask:
                continue
            try:
                self._library.ask("nvmlDeviceRegisterEvents", handle, mask, self._set)
            except NvmlError as error:
                self.refused[uuid] = error.code
            else:
                self.refused.pop(uuid, None)
                self.registered.add(uuid)
                return

    def _run(self) -> None:
        failed = burst = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                data = self._library.ask("nvmlEventSetWait_v2", self._set, WAIT_MS)
            except NvmlError as error:
                if error.code in CLOSED or error.code == FUNCTION_NOT_FOUND:
                    return  # the set went with the library
                if error.code == TIMEOUT:
                    failed = burst = 0
                    self._stop.wait(WAIT_MS / 1000 - (time.monotonic() - began))  # a driver that does not wait itself
                else:  # a lost GPU makes every wait fail: its events are over, those of the others go on
                    failed += 1
                    self._stop.wait(min(0.5 * 2 ** min(failed, 8), LONGEST_PAUSE_S))
                continue
            failed = 0
            self._put(data)
            burst += 1
            if burst % _BURST == 0:
                self._stop.wait(WAIT_MS / 1000)  # a storm is not worth a core
        self._free()

    def _put(self, data: Any) -> None:
        gpu = self._by_address.get(address(data.device)) or self._name(data.device)
        instance = None if data.gpuInstanceId in (_NO_INSTANCE, 0) else int(data.gpuInstanceId)
        told = [kind for bit, kind in KINDS.items() if data.eventType & bit] or ["other"]
        with self._lock:
            for kind in told:
                if len(self._waiting) >= WAITING_EVENTS:
                    self._dropped += 1
                else:
                    self._waiting.append(DeviceEvent(gpu, kind, int(data.eventData), instance))

    def _name(self, handle: Any) -> str:
        """Whose event it is, where the handle is not one of ours."""
        if address(handle):
            try:
                return str(self._library.ask("nvmlDeviceGetUUID", handle))
            except NvmlError as error:
                return "" if error.code == NOT_FOUND else self._alone
        return self._alone

    def _free(self) -> None:
        if self._set is None:
            return
        try:
            self._library.ask("nvmlEventSetFree", self._set)
        except NvmlError:
            self._set = None
            return
        self._set = None


class Tally:
    """What the agent has heard of each device since it started, whatever became of the library meanwhile."""

    def __init__(self, host: Subject) -> None:
        self._host = host
        self._xids: dict[str, tuple[int, int]] = {}  # UUID → how many, the last one

    def hear(self, event: DeviceEvent, at: float) -> Event:
        """Count an event and turn it into one of the pipeline's."""
        subject = Subject(gpu=event.gpu) if event.gpu else self._host
        detail = {} if event.instance is None else {"instance": str(event.instance)}
        if event.kind != "xid":
            return Event(subject, at, "gpu_event", {"kind": event.kind, "number": str(event.number)} | detail)
        total, _ = self._xids.get(event.gpu, (0, 0))
        self._xids[event.gpu] = total + 1, event.number
        return Event(subject, at, "xid", {"code": str(event.number)} | detail)

    def signals(self, gpu: str, listens: bool) -> dict[str, float]:
        """Readings of a device. Zero is known only where somebody listens."""
        seen = self._xids.get(gpu)
        if seen is not None:
            return {"gpu_xid_total": float(seen[0]), "gpu_xid_last_code": float(seen[1])}
        return {"gpu_xid_total": 0.0} if listens else {}


def address(handle: Any) -> int:
    """What identifies a handle; 0 for none."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
