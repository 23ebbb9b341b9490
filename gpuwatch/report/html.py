"""The postmortem as one HTML file: words from the view, drawings as inline SVG and CSS, nothing from the network.

Autoescape is on for every value; only this package's own style sheet and the SVG, which escapes its own labels, are
passed as markup. The page's own content policy forbids scripts and loads, so that even a mistake here stays inert.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .. import __version__
from .bars import STAGE_COLOURS, STAGE_WORDS, bar_frame, bar_rows
from .chart import Chart, svg
from .data import ReportData
from .plots import charts, time_frame
from .scales import time_ticks
from .strips import strips
from .view import view
from .words import duration, quantity

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"


class _Key(msgspec.Struct, frozen=True):
    colour: str
    words: str


class _Figure(msgspec.Struct, frozen=True):
    title: str
    note: str
    keys: tuple[_Key, ...]
    svg: str


def render_html(data: ReportData) -> str:
    """The whole page. Pure; ~60 kB for ten minutes of data and no more than ~200 kB for hours."""
    from markupsafe import Markup

    frame = time_frame(data)
    figures = tuple(
        _Figure(c.title, c.note, _keys(c), Markup(svg(c, frame, named=i == 0)))  # noqa: S704  (escaped in chart.py)
        for i, c in enumerate(charts(data))
    )
    axis = bar_frame(data.requests) if data.requests else frame
    rows = bar_rows(data.requests, axis)
    seen = {b.stage for r in rows for b in r.blocks}
    known = [s for s in STAGE_COLOURS if s in seen]
    stages = [
        (STAGE_WORDS.get(s, s), STAGE_COLOURS.get(s, "calm")) for s in [*known, *sorted(seen - STAGE_COLOURS.keys())]
    ]
    return (
        environment()
        .get_template("postmortem.html.j2")
        .render(
            v=view(data),
            css=Markup((TEMPLATES / "postmortem.css").read_text("utf-8")),  # noqa: S704  (a file of this package)
            confidence=f"{data.incident.confidence:.2f}" if data.incident else "",
            strips=strips(data.states, frame),
            charts=figures,
            rows=rows,
            bar_ticks=[
                (round(axis.share(at) * 100, 2), label) for at, label in time_ticks(axis.from_at, axis.until_at)
            ],
            marks=[(round(frame.share(m.at) * 100, 2), m.label) for m in frame.marks],
            stages=stages,
            version=__version__,
        )
    )


@cache
def environment() -> jinja2.Environment:
    """Templates of this package with autoescape always on; an undefined name is an error."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["duration"] = duration
    return env


def _keys(chart: Chart) -> tuple[_Key, ...]:
    """The legend with the range of each line: what one would otherwise have to read off the axis."""
    import numpy as np

    out = []
    for line in chart.lines:
        low, high = float(np.nanmin(line.values)), float(np.nanmax(line.values))
        unit = "" if chart.unit in {"requests", "tokens"} else chart.unit
        out.append(_Key(line.colour, f"{line.label} {quantity(low, unit)} to {quantity(high, unit)}"))
    return tuple(out)
