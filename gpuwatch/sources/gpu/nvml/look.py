"""One look at all boards: readings become frames, one a subject and lane; a board that falls silent becomes down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....model import Event, Frame, Info, Subject
from .board import SILENT_LOOKS, Board
from .device import Device
from .library import CLOSED, NvmlError, said
from .processes import GpuProcess
from .readings import Values

FAST, SLOW, GPM = "nvml", "nvml-slow", "gpm"
"""Sources of series: what is read each look, every few seconds, and by GPM."""


class Look:
    """What one look brought. `now` is the clock: each board is stamped when it is asked, not when all are done."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.frames: list[Frame] = []
        self.events: list[Event] = []
        self.info: list[Info] = []
        self.dropped = 0
        self.owners: dict[str, tuple[GpuProcess, ...]] = {}
        self.to_recut: list[Board] = []
        self.to_describe: list[Board] = []

    def add(self, subject: Subject, source: str, at: float, values: Values) -> None:
        """Readings of one subject at one time."""
        if values:
            self.frames.append(Frame(subject, source, tuple(values), np.array([at]), np.array([list(values.values())])))

    def read(self, board: Board, extra: Values) -> None:
        """Ask a board that is not down. `extra` goes with its readings. Raises NvmlError where the library is lost."""
        at = self._now()
        usage, slow, processes = board.usage.due(at), board.slow.due(at), board.processes.due(at)
        try:
            device = board.device
            device.begin_look()
            values = device.read("fast", at)
            if usage:
                values |= device.read("usage", at)
            later = device.read("slow", at) if slow else {}
            if processes and not board.is_mig:
                self._processes(device, later)
            gpm = device.read_gpm(at)
            if device.answers() is None:
                device.probe()
        except NvmlError as error:
            if error.code in CLOSED:
                raise
            board.down, board.is_gone = said(error.code), True
            return
        self.dropped += device.asked.dropped
        if slow:
            self.to_describe.append(board)
        if not self._judge(board, at, extra | values):
            return
        if "gpu_dram_active_ratio" in gpm and board.peak_dram == board.peak_dram:
            gpm["gpu_dram_bytes_per_second"] = gpm["gpu_dram_active_ratio"] * board.peak_dram
        self.add(board.subject, GPM, at, gpm)
        self.add(board.subject, SLOW, at, later)
        for instance in board.instances.values():
            self._instance(board, instance, usage, processes)

    def _judge(self, board: Board, at: float, values: Values) -> bool:
        """Whether the board counts as up. One that answers nothing is given a few looks before it is down."""
        if board.device.answers():
            board.silent_looks = 0
            self.add(board.subject, FAST, at, {"gpu_up": 1.0} | values)
            return True
        board.silent_looks += 1
        if board.silent_looks >= SILENT_LOOKS:
            board.down = said(board.device.asked.last)
        return False

    def _instance(self, board: Board, device: Device, usage: bool, processes: bool) -> None:
        at = self._now()
        device.begin_look()
        try:
            values = device.read("usage", at) if usage else {}
            gpm = device.read_gpm(at)
            later: Values = {}
            if processes:
                self._processes(device, later)
        except NvmlError as error:
            if error.code in CLOSED:
                raise
            self.to_recut.append(board)  # destroyed, most likely
            return
        self.dropped += device.asked.dropped
        self.add(device.subject, FAST, at, values)
        self.add(device.subject, SLOW, at, later)
        self.add(device.subject, GPM, at, gpm)

    def _processes(self, device: Device, values: Values) -> None:
        found = device.read_processes()
        if found is not None:
            self.owners[device.subject.gpu] = found
            values["gpu_processes"] = float(len(found))
