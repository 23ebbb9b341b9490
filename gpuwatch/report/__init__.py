"""The postmortem: what one recorded incident was, for people, as one HTML file and as Markdown.

`collect` replays a record and samples it at 1 Hz into a ReportData; `render_html` and `render_markdown` are pure
functions of that; `write_postmortem` goes from a capsule to two files. The pages load nothing from anywhere, run no
script, and treat every string that an engine supplied as hostile.
"""

from .collect import NoSuchIncidentError, collect
from .data import ReportData
from .html import render_html
from .markdown import render_markdown
from .write import write_postmortem, write_report

__all__ = [
    "NoSuchIncidentError",
    "ReportData",
    "collect",
    "render_html",
    "render_markdown",
    "write_postmortem",
    "write_report",
]
