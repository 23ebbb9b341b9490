"""Ctrl-C and SIGTERM: both end a run as KeyboardInterrupt, and never in the middle of a second."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Turns the two signals into KeyboardInterrupt. Inside `held` it comes when the block ends."""

    def __init__(self) -> None:
        self._holding = False
        self._asked = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch both signals inside the block, where this is the main thread; elsewhere nothing is changed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block end before a signal that comes in it does."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._asked:
            raise KeyboardInterrupt

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if not self._holding:
            raise KeyboardInterrupt
