"""A subprocess that never outlives the demo: its own session (Ctrl-C reaches the demo alone), killed with the parent.

On Linux the kernel kills it when the demo dies, however it dies (prctl PR_SET_PDEATHSIG). What it writes to stderr is
kept, at most the last 8 kB, to be quoted when it fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Self

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 8192
_GRACE_S = 5.0


class Child:
    """One engine process, started with this interpreter. Use as a context manager: leaving it ends the process."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        parent = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=(lambda: _die_with(parent)) if sys.platform == "linux" else None,
        )
        if self.process.stdout is None:
            raise RuntimeError("a child without a pipe")
        self.output: IO[bytes] = self.process.stdout

    def stop(self) -> int:
        """Ask it to end, insist after five seconds, and say how it ended."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self.output.close()
        return code

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors.tell() - _TAIL_BYTES, 0))
        return self._errors.read().decode("utf-8", "replace").strip()

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._errors.close()


def problem_in(complaint: str) -> str:
    """What a command line's complaint says, without the usage around it."""
    return complaint.rpartition("Error: ")[2].strip()


def _die_with(parent: int) -> None:
    """In the child, before it becomes the engine: have the kernel end it when the demo ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the demo died in between
        os._exit(1)
