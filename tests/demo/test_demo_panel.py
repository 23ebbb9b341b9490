"""What the demo shows: never wider than the terminal, no debris after a resize, nothing of the engine's steers it."""

from __future__ import annotations

import io
import math
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.demo.panel import Moment, Plots, panel, plain_line
from gpuwatch.demo.screen import PlainScreen, TerminalScreen, screen_for
from tests.report.sample import incident

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
numbers = st.one_of(st.floats(0, 1e6), st.just(math.nan))


def moment(
    now: float = 60.0, line: str = "bandwidth-bound · steady", running: float = 12.0, opened: bool = False
) -> Moment:
    return Moment(now, 0.0, "virtual time", line, running, 3.0, 0.5, (incident(),) if opened else ())


@settings(deadline=None)
@given(st.integers(1, 200), st.text(max_size=300), st.lists(numbers, max_size=700), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_terminal(
    width: int, line: str, values: list[float], colours: bool, opened: bool
) -> None:
    """At any width, with any state line and any history; and no control character but our own colours."""
    plots = Plots()
    for value in values:
        plots.add(moment(running=value))
    for shown in panel("demo " + line, moment(line=line, opened=opened), plots, width, colours):
        bare = ESCAPE.sub("", shown)
        assert len(bare) <= width
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", bare)
        assert colours or bare == shown


def test_a_plain_line_says_how_far_what_and_why() -> None:
    """For logs: elapsed time, numbers, the state, and the worst open incident."""
    line = plain_line(moment(now=95.0, opened=True))
    assert "95 s" in line
    assert "running 12, waiting 3, KV 50 %" in line
    assert "PAGE batch_thrashing" in line


def test_unknown_numbers_are_not_zero() -> None:
    """What is not known is a dash, on the panel and in the log."""
    assert "running –" in plain_line(moment(running=math.nan))
    plots = Plots()
    plots.add(moment(running=math.nan))
    assert "running   " in "\n".join(panel("t", moment(running=math.nan), plots, 80, colours=False))


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and an interpreter of the few escapes that the screen uses."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def picture(self, columns: int) -> list[str]:
        """The rows as they stand, with long lines wrapped at `columns`."""
        rows: list[str] = [""]
        row = 0
        for part in re.split(r"(\x1b\[\d*[A-Za-z]|\n)", ESCAPE.sub("", self.getvalue())):
            if part == "\n":
                row += 1
            elif match := re.fullmatch(r"\x1b\[(\d*)([FJ])", part):
                if match[2] == "F":
                    row = max(row - int(match[1]), 0)
                else:
                    rows = rows[:row]
            else:
                for at in range(0, max(len(part), 1), columns):
                    _put(rows, row, part[at : at + columns])
                    row += 1 if at + columns < len(part) else 0
            while len(rows) <= row:
                rows.append("")
        return rows


def _put(rows: list[str], row: int, text: str) -> None:
    while len(rows) <= row:
        rows.append("")
    if text:
        rows[row] = text


def test_frames_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many seconds there is one panel on the screen, that of the last second."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 30)))
    stream = Terminal()
    screen = TerminalScreen(stream, "gpuwatch demo")
    for second in range(30):
        screen.show(moment(now=float(second)), wall=float(second))
    screen.close()
    picture = stream.picture(80)
    assert sum("gpuwatch demo" in row for row in picture) == 1
    assert any("29 s" in row for row in picture)


def test_a_narrower_window_leaves_no_debris(monkeypatch: pytest.MonkeyPatch) -> None:
    """When lines of the last frame wrap in a window that has shrunk, the next frame goes up by the rows they take now."""
    size = [os.terminal_size((100, 40))]
    monkeypatch.setattr("shutil.get_terminal_size", lambda: size[0])
    stream = Terminal()
    screen = TerminalScreen(stream, "gpuwatch demo of a scenario with a title " + "x" * 50, colours=False)
    screen.show(moment(now=1.0, line="state " * 30), wall=1.0)
    size[0] = os.terminal_size((40, 40))
    screen.show(moment(now=2.0, line="state " * 30), wall=2.0)
    assert sum("gpuwatch demo" in row for row in stream.picture(40)) == 1


def test_frames_are_bounded_in_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand seconds within a tenth of one are one frame, and the last second is drawn at the end."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 30)))
    stream = Terminal()
    screen = TerminalScreen(stream, "demo")
    for second in range(1000):
        screen.show(moment(now=float(second)), wall=second * 1e-4)
    assert stream.getvalue().count("\x1b[J") == 1
    screen.close()
    assert "16 min 39 s" in stream.getvalue()


def test_the_screen_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets plain lines, a dumb terminal too; NO_COLOR takes the colours away."""
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(io.StringIO(), "t"), PlainScreen)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 30)))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    screen = screen_for(stream, "t")
    screen.show(moment(opened=True), wall=1.0)
    assert not ESCAPE.search(stream.getvalue())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Terminal(), "t"), PlainScreen)


def test_a_log_gets_a_line_per_ten_seconds_and_one_per_news() -> None:
    """About one line in ten seconds; the opening of an incident is said at once."""
    stream = io.StringIO()
    screen = PlainScreen(stream, "t")
    for second in range(61):
        screen.show(moment(now=float(second), opened=second >= 33), wall=0.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 7
    assert any("33 s" in line and "PAGE" in line for line in lines)
