"""Where the demo shows itself: a panel that is redrawn on a terminal, plain lines anywhere else.

The panel is drawn over itself: before each frame the cursor goes up by the rows that the last frame takes at the
*present* width, so that a resize in between does not leave debris. At most ten frames a second.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from typing import Protocol, TextIO

from .panel import Moment, Plots, panel, plain_line, safe

_FRAME_S = 0.1
_PLAIN_EVERY_S = 10.0
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Screen(Protocol):
    """What shows the seconds of a run. `wall` is a monotonic time in seconds, for the frame rate only."""

    def show(self, moment: Moment, wall: float) -> None:
        """Show one second, or keep it for a later frame."""

    def say(self, text: str) -> None:
        """Tell something that is not a second: what is being started, or waited for."""

    def close(self) -> None:
        """Leave the screen as a shell expects it."""


def screen_for(stream: TextIO, title: str) -> Screen:
    """A panel where the stream is a terminal that can draw it, plain lines otherwise."""
    if stream.isatty() and os.environ.get("TERM", "") != "dumb" and _draws_blocks(stream):
        return TerminalScreen(stream, title, colours="NO_COLOR" not in os.environ)
    return PlainScreen(stream, title)


def _draws_blocks(stream: TextIO) -> bool:
    try:
        "█▁·…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class TerminalScreen:
    """A panel on a terminal."""

    def __init__(self, stream: TextIO, title: str, colours: bool = True) -> None:
        self._stream = stream
        self._title = title
        self._colours = colours
        self._plots = Plots()
        self._last: list[str] = []
        self._drawn_at = -math.inf
        self._moment: Moment | None = None

    def show(self, moment: Moment, wall: float) -> None:
        """Take one second into the plots, and draw unless a frame was drawn just now."""
        self._plots.add(moment)
        self._moment = moment
        if wall - self._drawn_at >= _FRAME_S:
            self._drawn_at = wall
            self._draw(moment)

    def say(self, text: str) -> None:
        """A line above the panel."""
        self.close()
        self._stream.write(f"{safe(text)}\n")
        self._stream.flush()

    def close(self) -> None:
        """Draw the last second, whatever the frame rate, and leave the cursor below the panel."""
        if self._moment is not None:
            self._draw(self._moment)
            self._moment = None
            self._last = []

    def _draw(self, moment: Moment) -> None:
        size = shutil.get_terminal_size()
        width = max(min(size.columns - 1, 120), 1)  # the last column would wrap on some terminals
        rows = sum(_rows(line, size.columns) for line in self._last)
        lines = panel(self._title, moment, self._plots, width, self._colours)
        lines = lines[: max(size.lines - 1, 1)]
        up = f"\x1b[{rows}F" if rows else ""
        self._stream.write(up + "\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._last = lines


def _rows(line: str, columns: int) -> int:
    """Rows that a printed line takes on a terminal of this width now."""
    return max(math.ceil(len(_ESCAPES.sub("", line)) / max(columns, 1)), 1)


class PlainScreen:
    """About one line per ten seconds of the run, and one whenever an incident opens or ends."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._shown_at = -math.inf
        self._open: frozenset[str] = frozenset()
        self.say(title)

    def show(self, moment: Moment, wall: float) -> None:
        """Print the second where ten have passed since the last line, or where what is open has changed."""
        now_open = frozenset(i.id for i in moment.open)
        if moment.now - self._shown_at >= _PLAIN_EVERY_S or now_open != self._open:
            self._shown_at = moment.now
            self._open = now_open
            self.say(plain_line(moment))

    def close(self) -> None:
        """Nothing is left to do."""

    def say(self, text: str) -> None:
        """One line, in the stream's own encoding."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()
