"""One plot as inline SVG: lines over a time axis, the incident shaded, onset and detection marked.

The drawing is stretched (`preserveAspectRatio="none"`, strokes that do not scale) and the words are placed in percent
around it, so that one drawing is readable at 390 and at 1,400 pixels without a script. Colours are CSS classes; every
text is escaped here, because labels may carry an engine's own strings.
"""

from __future__ import annotations

from html import escape

import msgspec
import numpy as np

from ..model import Floats
from .scales import decimate, time_ticks, value_ticks
from .words import quantity

_W, _H = 1000.0, 100.0


class Mark(msgspec.Struct, frozen=True):
    """A moment worth a vertical line; `before` puts its label to the left of the line."""

    at: float
    label: str
    before: bool = False


class TimeFrame(msgspec.Struct, frozen=True):
    """The time axis that all drawings of a report share, with the spans to shade and the moments to mark."""

    from_at: float
    until_at: float
    shaded: tuple[tuple[float, float], ...] = ()
    marks: tuple[Mark, ...] = ()

    def share(self, at: float) -> float:
        """Where `at` lies on the axis, 0–1, clipped to its ends."""
        return min(1.0, max(0.0, (at - self.from_at) / max(self.until_at - self.from_at, 1e-9)))


class Line(msgspec.Struct, frozen=True, eq=False):
    """One curve; `colour` is a CSS class a, b or c. `filled` draws the area below it."""

    label: str
    colour: str
    at: Floats
    values: Floats
    filled: bool = False


class Chart(msgspec.Struct, frozen=True, eq=False):
    """One plot: curves of one unit from zero up, an optional limit line, and a ceiling for ratios."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    limit: float | None = None
    limit_label: str = ""
    ceiling: float | None = None
    note: str = ""


def svg(chart: Chart, frame: TimeFrame, named: bool = True) -> str:
    """The plot as an SVG element that fills its box, described in words in `aria-label`.

    `named` puts the names of the marks beside their lines: once a page is enough.
    """
    ticks = _value_axis(chart)
    high = ticks[-1]
    drawing = "".join(
        [
            *(_shade(frame, start, end) for start, end in frame.shaded),
            *(_horizontal(t / high, "grid") for t in ticks),
            *(_vertical(frame.share(m.at), "onset" if m.before else "seen") for m in frame.marks),
            *(_curve(line, frame, high) for line in chart.lines),
            _horizontal(chart.limit / high, "limit") if chart.limit is not None and chart.limit <= high else "",
        ]
    )
    return (
        f'<svg class="plot" role="img" aria-label="{escape(_described(chart))}">'
        f'<svg viewBox="0 0 {_W:g} {_H:g}" preserveAspectRatio="none" width="100%" height="100%">{drawing}</svg>'
        f"{_value_labels(chart, ticks)}{_time_labels(frame)}{_mark_labels(frame) if named else ''}"
        f"{_limit_label(chart, high)}</svg>"
    )


def _value_axis(chart: Chart) -> tuple[float, ...]:
    peak = max((float(np.nanmax(line.values)) for line in chart.lines if _known(line.values)), default=0.0)
    if chart.limit is not None and peak >= chart.limit * 0.4:
        peak = max(peak, chart.limit * 1.1)
    if chart.ceiling is not None:
        peak = chart.ceiling
    return value_ticks(peak, chart.unit)


def _known(values: Floats) -> bool:
    return bool(np.any(~np.isnan(values)))


def _curve(line: Line, frame: TimeFrame, high: float) -> str:
    at, values = decimate(line.at, line.values)
    xs = np.clip((at - frame.from_at) / max(frame.until_at - frame.from_at, 1e-9), 0.0, 1.0) * _W
    ys = _H - np.clip(values / high, 0.0, 1.02) * _H
    stroke, area = [], []
    for run in _unbroken(values):
        points = [f"{x:.1f} {y:.1f}" for x, y in zip(xs[run], ys[run], strict=True)]
        if len(points) == 1:  # a lone point still shows: a dash as long as the stroke is wide
            points.append(points[0])
        stroke.append("M" + "L".join(points))
        area.append(f"M{xs[run][0]:.1f} {_H:g}L" + "L".join(points) + f"L{xs[run][-1]:.1f} {_H:g}Z")
    fill = f'<path class="area {line.colour}" d="{"".join(area)}"/>' if line.filled and area else ""
    return fill + (f'<path class="line {line.colour}" d="{"".join(stroke)}"/>' if stroke else "")


def _unbroken(values: Floats) -> list[slice]:
    """Runs of known values, as slices."""
    known = np.concatenate(([0], (~np.isnan(values)).astype(np.int8), [0]))
    steps = np.diff(known)
    return [slice(int(a), int(b)) for a, b in zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True)]


def _shade(frame: TimeFrame, start: float, end: float) -> str:
    x0, x1 = frame.share(start) * _W, frame.share(end) * _W
    return f'<rect class="shade" x="{x0:.1f}" y="0" width="{max(x1 - x0, 1.0):.1f}" height="{_H:g}"/>'


def _horizontal(share: float, css: str) -> str:
    y = _H - share * _H
    return f'<path class="{css}" d="M0 {y:.1f}H{_W:g}"/>'


def _vertical(share: float, css: str) -> str:
    return f'<path class="{css}" d="M{share * _W:.1f} 0V{_H:g}"/>'


def _value_labels(chart: Chart, ticks: tuple[float, ...]) -> str:
    high = ticks[-1]
    return "".join(
        f'<text class="y" x="-8" y="{100 - t / high * 100:.1f}%" dy=".32em">{escape(_tick_text(t, chart.unit))}</text>'
        for t in ticks
    )


def _tick_text(value: float, unit: str) -> str:
    """A tick's label: counts stand alone, since the title says what is counted."""
    return quantity(value, "" if unit in {"requests", "tokens"} else unit) if value else "0"


def _time_labels(frame: TimeFrame) -> str:
    out = []
    for i, (at, label) in enumerate(time_ticks(frame.from_at, frame.until_at)):
        css = "x" if i % 2 == 0 else "x odd"
        out.append(f'<text class="{css}" x="{frame.share(at) * 100:.2f}%" y="100%" dy="1.5em">{label}</text>')
    return "".join(out)


def _mark_labels(frame: TimeFrame) -> str:
    return "".join(
        f'<text class="mark {"end" if m.before else ""}" x="{frame.share(m.at) * 100:.2f}%" '
        f'dx="{-4 if m.before else 4}" y="0" dy=".95em">{escape(m.label)}</text>'
        for m in frame.marks
    )


def _limit_label(chart: Chart, high: float) -> str:
    if chart.limit is None or chart.limit > high:
        return ""
    y = 100 - chart.limit / high * 100
    return f'<text class="limit" x="100%" dx="-2" y="{y:.1f}%" dy="-.4em">{escape(chart.limit_label)}</text>'


def _described(chart: Chart) -> str:
    parts = [
        f"{line.label} from {quantity(float(np.nanmin(line.values)), chart.unit)} to "
        f"{quantity(float(np.nanmax(line.values)), chart.unit)}"
        for line in chart.lines
        if _known(line.values)
    ]
    return f"{chart.title} over time: {'; '.join(parts)}"
