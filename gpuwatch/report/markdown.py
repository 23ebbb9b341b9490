"""The postmortem as Markdown, for an issue or a wiki: the same words in the same order, with character plots.

Every value is escaped on its way out (`finalize`), so that an engine's model name can neither open a tag nor a link nor
break a table; code spans are fenced by more backticks than they hold.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from .data import ReportData
from .html import TEMPLATES
from .plots import charts
from .spark import sparkline
from .view import view
from .words import quantity

if TYPE_CHECKING:
    import jinja2

_SPECIAL = re.compile(r"([\\`*\[\]|])")
_BREAKS = re.compile(r"\s+")
_TICKS = re.compile(r"`+")
_SPARK_COLUMNS = 60


class Safe(str):
    """Markdown that is finished: not escaped again."""

    __slots__ = ()


def render_markdown(data: ReportData) -> str:
    """The whole document. Pure."""
    text = (
        _environment()
        .get_template("postmortem.md.j2")
        .render(
            v=view(data),
            confidence=f"{data.incident.confidence:.2f}" if data.incident else "",
            plots=_plots(data),
            version=__version__,
        )
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escaped(value: object) -> Safe:
    """Text as Markdown text: one line, no markup, no HTML, no table cell of its own."""
    if isinstance(value, Safe):
        return value
    text = _BREAKS.sub(" ", str(value))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Safe(_SPECIAL.sub(r"\\\1", text))


def code(value: object) -> Safe:
    """Text as a code span that its own backticks cannot leave. A pipe is escaped, for tables."""
    text = _BREAKS.sub(" ", str(value)).strip().replace("|", r"\|")
    if not text:
        return Safe("")
    fence = "`" * (max((len(t) for t in _TICKS.findall(text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return Safe(f"{fence}{pad}{text}{pad}{fence}")


def _plots(data: ReportData) -> list[tuple[str, str, str]]:
    """(label, character plot, range) of each curve."""
    out = []
    for chart in charts(data):
        for line in chart.lines:
            bars = sparkline(line.values.tolist(), _SPARK_COLUMNS, chart.ceiling)
            low, high = float(np.nanmin(line.values)), float(np.nanmax(line.values))
            name = chart.title if len(chart.lines) == 1 else f"{chart.title}: {line.label}"
            out.append((name, bars, f"{quantity(low, chart.unit)} to {quantity(high, chart.unit)}"))
    return out


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    def finalize(value: Any) -> Any:
        return escaped(value)

    env = jinja2.Environment(  # noqa: S701  (not HTML: `finalize` escapes every value for Markdown)
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["code"] = code
    env.filters["safe_md"] = Safe  # for what a macro has rendered, and so escaped, already
    return env
