"""A small bar on stderr while long material is read; nothing where stderr is no terminal, or the work is short."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

_WIDTH = 30
_LONG_S = 1.0


class Bar:
    """Called with the share that is done, 0–1. `elapsed_s` says how long it has been going on: short work shows nothing."""

    def __init__(self, out: TextIO, elapsed_s: Callable[[], float], what: str = "reading") -> None:
        self._out = out if out.isatty() else None
        self._elapsed_s = elapsed_s
        self._what = what
        self._shown = -1

    def __call__(self, share: float) -> None:
        """Draw, at most once a percent."""
        percent = int(100 * min(max(share, 0.0), 1.0))
        if self._out is None or percent == self._shown or self._elapsed_s() < _LONG_S:
            return
        self._shown = percent
        filled = "█" * (percent * _WIDTH // 100)
        self._out.write(f"\r{self._what} {filled:<{_WIDTH}} {percent:3d} %")
        self._out.flush()

    def clear(self) -> None:
        """Take the bar away."""
        if self._out is not None and self._shown >= 0:
            self._out.write("\r" + " " * (len(self._what) + _WIDTH + 8) + "\r")
            self._out.flush()
