"""What the demo shows while it runs, as lines of text: the state line, small plots, the open incidents.

Pure: the screen says how wide it is and whether it has colours. No line is wider than asked, at any width.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import deque
from collections.abc import Sequence

import msgspec

from ..model import Incident
from ..report.spark import column_plot
from ..report.words import duration, percent, plain, readable, utc

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
KEPT_S = 600
"""Seconds of history in a plot, at most."""

BOLD, DIM, RED, YELLOW, BLUE, GREEN = "1", "2", "31", "33", "34", "32"
_SEVERITY_COLOUR = {"page": RED, "ticket": YELLOW, "info": BLUE}


class Moment(msgspec.Struct, frozen=True):
    """One second as the panel shows it. Numbers are NaN where nothing is known."""

    now: float
    started_at: float
    pace: str  # "virtual time, 212 × real time" or "real time"
    line: str
    running: float
    waiting: float
    kv_usage_ratio: float
    open: tuple[Incident, ...]


class Plots:
    """The history behind the plots."""

    def __init__(self) -> None:
        self.running: deque[float] = deque(maxlen=KEPT_S)
        self.waiting: deque[float] = deque(maxlen=KEPT_S)
        self.kv: deque[float] = deque(maxlen=KEPT_S)

    def add(self, moment: Moment) -> None:
        """Take one second."""
        self.running.append(moment.running)
        self.waiting.append(moment.waiting)
        self.kv.append(moment.kv_usage_ratio)


def safe(text: str) -> str:
    """Text without control characters: an engine's strings must not steer the terminal."""
    return _UNPRINTABLE.sub("�", text)


def paint(text: str, style: str, colours: bool) -> str:
    """Text in a style, where the screen has colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if colours and text else text


def panel(title: str, moment: Moment, plots: Plots, width: int, colours: bool) -> list[str]:
    """The lines of the panel, each at most `width` wide."""
    elapsed = f"{duration(float(round(moment.now - moment.started_at)))} · {moment.pace}"
    lines = [paint(clip(safe(title), width), BOLD, colours), paint(clip(elapsed, width), DIM, colours), ""]
    state = textwrap.wrap(safe(moment.line), width)[:3] if width > 8 else [clip(safe(moment.line), width)]
    lines += [*state, *[""] * (2 - len(state)), ""]  # two lines at least, so that the plots do not jump
    for name, values, value, high, style in (
        ("running", plots.running, plain(moment.running), None, BLUE),
        ("waiting", plots.waiting, plain(moment.waiting), None, YELLOW),
        ("KV cache", plots.kv, percent(moment.kv_usage_ratio), 1.0, GREEN),
    ):
        lines += _plot(name, list(values), value, high, style, width, colours)
    return [*lines, "", *_incidents(moment.open, width, colours)]


def _plot(
    name: str, values: list[float], value: str, high: float | None, style: str, width: int, colours: bool
) -> list[str]:
    """Two lines of columns with the name on the left, the value and the peak on the right."""
    room = width - 10 - 16
    if room < 8:
        return [clip(f"{name} {value}", width)]
    top, bottom = column_plot(values, room, 2, high)
    known = [v for v in values if not math.isnan(v)]
    peak = f"peak {percent(max(known)) if high else plain(max(known))}" if known else ""
    pad = max(room - len(top), 0) * " "
    return [
        f"{'':10}{paint(top, style, colours)}{pad} {paint(peak[:15], DIM, colours)}",
        f"{name:10}{paint(bottom, style, colours)}{pad} {value[:15]}",
    ]


def _incidents(incidents: Sequence[Incident], width: int, colours: bool) -> list[str]:
    if not incidents:
        return [paint(clip("no incident is open", width), DIM, colours)]
    return [paint(clip(incident_line(i), width), _SEVERITY_COLOUR[i.severity], colours) for i in list(incidents)[:3]]


def incident_line(incident: Incident) -> str:
    """`PAGE Batch thrashing since 16:01:02 UTC: the running batch …`."""
    began = f"{incident.severity.upper()} {readable(incident.rule)} since {utc(incident.onset_at)}"
    return safe(f"{began}: {incident.summary}")


def clip(text: str, width: int) -> str:
    """Text cut to a width, with an ellipsis where something is missing."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + ("…" if width > 0 else "")


def plain_line(moment: Moment) -> str:
    """One line for a log: how far, what runs and waits, and the state."""
    elapsed = duration(float(round(moment.now - moment.started_at)))
    numbers = f"running {plain(moment.running)}, waiting {plain(moment.waiting)}, KV {percent(moment.kv_usage_ratio)}"
    worst = f" · {moment.open[0].severity.upper()} {moment.open[0].rule}" if moment.open else ""
    return safe(f"{elapsed:>12}  {numbers} · {moment.line}{worst}")
