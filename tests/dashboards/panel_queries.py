"""The queries of a dashboard's JSON, with its variables put in, as Grafana would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "dashboards" / "json"
VARIABLES = {"$pool": ".*", "$engine": ".*", "$__rate_interval": "1m", "${datasource}": "prometheus"}


class PanelQuery(NamedTuple):
    """One target of one panel; `instant` where only the newest value is shown."""

    panel: str
    expr: str
    legend: str
    instant: bool


def board(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return read


def panel_queries(tree: dict[str, Any]) -> Iterator[PanelQuery]:
    """Every target of every panel, and the annotations as instant queries."""
    for panel in tree["panels"]:
        for target in panel.get("targets", ()):
            yield PanelQuery(
                panel["title"], resolved(target["expr"]), target.get("legendFormat", ""), target.get("instant", False)
            )
    for annotation in tree["annotations"]["list"]:
        if "expr" in annotation:
            legend = annotation["titleFormat"] + annotation["textFormat"]
            yield PanelQuery(f"annotation {annotation['name']}", resolved(annotation["expr"]), legend, False)


def resolved(text: str) -> str:
    """A query with the variables' values."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text
