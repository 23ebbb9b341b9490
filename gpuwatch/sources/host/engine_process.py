"""Which process is an engine's, remembered as long as it lives.

Named in the configuration, or by the engine's step ring, or found by the port that it listens on (see
sources/gpu/ownership/clues.py for who is believed). Looking for it costs a walk through /proc, so it is done only while
nobody is known.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...config import EngineTarget
from ..gpu.ownership.clues import Pid, find_process
from .process_files import own_line, stat


class EngineProcess:
    """Says the process of `target` under `proc`; 0 while none is known. `told`: what configuration and ring say."""

    def __init__(self, target: EngineTarget, told: Callable[[], Pid], proc: Path = Path("/proc")) -> None:
        self._target = target
        self._told = told
        self._proc = proc
        self._known = (0, 0.0)  # pid, start

    @property
    def pid(self) -> int:
        """The process that was found last, or is configured; 0 where none is known. Costs nothing."""
        return self._known[0] or self._target.pid

    def __call__(self) -> int:
        """Look. Raises OSError where /proc itself cannot be read."""
        pid, started_s = self._known
        told = self._told()
        if told.told_by == "config":
            self._known = told.pid, self._started(told.pid)
        elif not pid or self._started(pid) != started_s:
            pid = find_process(told, self._target, (), self._proc)
            self._known = (0, 0.0) if pid in own_line(self._proc) else (pid, self._started(pid))
        return self._known[0]

    def _started(self, pid: int) -> float:
        try:
            return stat(self._proc / str(pid)).started_s if pid else 0.0
        except (OSError, ValueError):
            return -1.0  # it is gone
