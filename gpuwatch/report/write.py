"""From a capsule to two files. Each appears under its name only when it is whole."""

from __future__ import annotations

from pathlib import Path

from .collect import collect
from .data import ReportData
from .html import render_html
from .markdown import render_markdown


def write_postmortem(
    capsule_path: str | Path, out_html: str | Path | None, out_md: str | Path | None, incident_id: str | None = None
) -> ReportData:
    """Replay a capsule and write its postmortem as HTML, Markdown or both.

    Raises CapsuleError for a file that is no whole capsule, NoSuchIncidentError, and OSError where writing fails.
    """
    from ..recording.capsule import Capsule

    capsule = Capsule.open(capsule_path)
    header = capsule.header
    data = collect(
        capsule.calls(),
        header.config,
        capsule.snapshot,
        capsule=Path(capsule_path).name,
        meta={"clock": header.clock, **header.meta},
        incident_id=incident_id or header.incident or None,
    )
    write_report(data, out_html, out_md)
    return data


def write_report(data: ReportData, out_html: str | Path | None, out_md: str | Path | None) -> None:
    """Render and write what is asked for. Raises OSError."""
    for path, render in ((out_html, render_html), (out_md, render_markdown)):
        if path is not None:
            part = Path(f"{path}.part")
            part.write_text(render(data), "utf-8")
            part.replace(path)
