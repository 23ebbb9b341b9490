"""Who uses a device: processes with their memory and share of the SMs, and who they are by /proc.

NVML reports pids of the *host*, whatever namespace the caller is in; /proc tells about them only where the agent sees
the host's processes. Lists are expensive for the driver (milliseconds under its lock), so they are asked for rarely.
On a MIG board the list belongs to the instances.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from .library import CLOSED, GONE, REFUSALS, Library, NvmlError

MOST = 256
"""Longest list that is kept; a device has a handful."""
NO_INSTANCE = 0xFFFFFFFF
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
_CONTAINER = re.compile(r"([0-9a-f]{64})")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a device: host pid, memory (NaN: the driver does not say), mean share of SMs since the last look."""

    pid: int
    memory_bytes: float = math.nan
    sm_ratio: float = math.nan
    instance: int = NO_INSTANCE


class Owner(msgspec.Struct, frozen=True):
    """Who a process is. Empty: not to be seen from here. Never arguments: they carry secrets."""

    pid: int
    command: str = ""
    container: str = ""
    pod_uid: str = ""


class ProcessList:
    """The processes of one device or MIG instance, by an expensive call that is asked for rarely."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._calls = list(_LISTS)
        self._samples = True
        self._seen_us = 0
        self.refused: dict[str, int] = {}
        self.cut = 0

    def read(self) -> tuple[GpuProcess, ...] | None:
        """The processes now; None where the device does not say. Raises NvmlError where device or driver are gone."""
        found: dict[int, GpuProcess] = {}
        answered = False
        for call in tuple(self._calls):
            listed = self._ask(call)
            if listed is None:
                continue
            answered = True
            for one in listed[:MOST]:
                memory = one.usedGpuMemory
                held = math.nan if memory is None else float(memory)
                instance = getattr(one, "gpuInstanceId", None)
                found[one.pid] = GpuProcess(one.pid, held, instance=NO_INSTANCE if instance is None else instance)
            self.cut += max(len(listed) - MOST, 0)
        if not answered:
            return None
        shares = self._shares() if found else {}
        return tuple(
            msgspec.structs.replace(process, sm_ratio=shares.get(pid, math.nan)) for pid, process in found.items()
        )

    def _ask(self, call: str) -> list[Any] | None:
        try:
            return list(self._library.ask(call, self._handle))
        except NvmlError as error:
            if error.code in GONE or error.code in CLOSED:
                raise
            if error.code in REFUSALS:
                self._calls.remove(call)
                self.refused[call] = error.code
            return None

    def _shares(self) -> dict[int, float]:
        """Mean SM share by pid since the last look. The driver answers "success" with nothing for no new samples."""
        if not self._samples:
            return {}
        try:
            samples = self._library.ask("nvmlDeviceGetProcessUtilization", self._handle, self._seen_us)
        except NvmlError as error:
            if error.code in GONE or error.code in CLOSED:
                raise
            if error.code in REFUSALS:
                self._samples = False
                self.refused[error.call] = error.code
            return {}  # code 0 and NOT_FOUND among them: no new samples
        shares: dict[int, list[float]] = {}
        for sample in samples[: 100 * MOST]:
            self._seen_us = max(self._seen_us, int(sample.timeStamp))
            if 0 <= sample.smUtil <= 100:
                shares.setdefault(int(sample.pid), []).append(sample.smUtil * 0.01)
        return {pid: sum(ratios) / len(ratios) for pid, ratios in shares.items()}


def owner(pid: int, proc: Path = Path("/proc")) -> Owner:
    """Who has this host pid, as far as /proc (the host's) tells."""
    try:
        command = (proc / str(pid) / "comm").read_text(errors="replace").strip()[:64]
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")[:4096]
    except OSError:
        return Owner(pid)
    container, pod = _CONTAINER.search(groups), _POD.search(groups)
    return Owner(pid, command, container[1] if container else "", pod[1].replace("_", "-") if pod else "")
