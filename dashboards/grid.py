"""How our panels look, once: queries with their legends, defaults of each kind of panel, and the JSON form.

Every query carries the dashboard's selector, so that the variables pool and engine work everywhere. The SDK leaves panel
ids unset and writes a `placement` that Grafana's own JSON does not have; `to_json` mends both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

ENGINE = 'pool=~"$pool",engine=~"$engine"'
"""Selector of an engine's series."""
POOL = 'pool=~"$pool"'
"""Selector of series that know no engine: devices and agents."""

_SOURCE = cm.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Okabe and Ito's colours: told apart by everyone, and readable on dark and light.
BLUE, ORANGE, GREEN, RED, PURPLE = "#56B4E9", "#E69F00", "#009E73", "#D55E00", "#CC79A7"

Query = tuple[str, str]
"""PromQL and the legend of its series."""


def source() -> cm.DataSourceRef:
    """The Prometheus of the variable `datasource`."""
    return _SOURCE


def lines(
    title: str,
    about: str,
    queries: Sequence[Query],
    unit: str,
    *,
    top: float | None = None,
    stacked: bool = False,
    limit: float | None = None,
    width: int = 12,
) -> timeseries.Panel:
    """Curves over time from zero up. `top` fixes the axis (ratios), `limit` draws a dashed line."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(_SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .line_width(1.5)
        .fill_opacity(40 if stacked else 8)
        .show_points(cm.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(cm.LegendDisplayMode.LIST)
            .placement(cm.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(cm.TooltipDisplayMode.MULTI).sort(cm.SortOrder.DESCENDING))
    )
    if top is not None:
        panel = panel.max(top)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(cm.StackingMode.NORMAL).group("A"))
    if limit is not None:
        panel = panel.thresholds(_steps((None, "transparent"), (limit, RED))).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(cm.GraphThresholdsStyleMode.DASHED)
        )
    return _with(panel, queries)


def number(
    title: str, about: str, query: str, unit: str, steps: Sequence[tuple[float | None, str]], width: int = 6
) -> stat.Panel:
    """One number with its colour by threshold. Nothing known shows as "no data", never as zero."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(_SOURCE)
        .unit(unit)
        .span(width)
        .height(4)
        .no_value("no data")
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_steps(*steps))
        .graph_mode(_graph_mode())
    )
    return panel.with_target(_query(query, "", "A").instant())


def answers(title: str, about: str, queries: Sequence[Query]) -> statetimeline.Panel:
    """A row for each answer that occurs, filled while it holds."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(about)
        .datasource(_SOURCE)
        .span(24)
        .height(11)
        .show_value(cm.VisibilityMode.NEVER)
        .row_height(0.85)
        .legend(common.VizLegendOptions().show_legend(False))
        .thresholds(_steps((None, BLUE)))
    )
    return _with(panel, queries)


def rows(title: str, about: str, query: str, columns: Sequence[str], width: int = 12) -> table.Panel:
    """A table of the series that exist now: their labels, in this order."""
    shown = {name: i for i, name in enumerate(columns)}
    keep = dm.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
    order = dm.DataTransformerConfig(id_val="organize", options={"indexByName": shown})
    panel = (
        table.Panel()
        .title(title)
        .description(about)
        .datasource(_SOURCE)
        .span(width)
        .height(7)
        .no_value("none")
        .with_transformation(keep)
        .with_transformation(order)
    )
    return panel.with_target(_query(query, "", "A").instant().format(PromQueryFormat.TABLE))


def caption(words: str, width: int = 12, height: int = 8) -> text.Panel:
    """Words beside a panel that would mislead without them."""
    return text.Panel().content(words).span(width).height(height).transparent(True)


def section(title: str) -> dashboard.Row:
    """A heading."""
    return dashboard.Row(title)


def to_json(built: dm.Dashboard) -> str:
    """The dashboard as committed: ids in order, sorted keys, a line break at the end."""
    tree = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(built))
    _strip_placement(tree)
    for number_, panel in enumerate(tree["panels"], start=1):
        panel["id"] = number_
    return json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _strip_placement(node: Any) -> None:
    """Links and annotations of Grafana's JSON have no `placement`; legends do, and keep it."""
    for part in [*node.get("links", ()), *node.get("annotations", {}).get("list", ())]:
        part.pop("placement", None)


def _with(panel: Any, queries: Sequence[Query]) -> Any:
    for i, (expression, legend) in enumerate(queries):
        panel = panel.with_target(_query(expression, legend, chr(ord("A") + i)))
    return panel


def _query(expression: str, legend: str, reference: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .datasource(_SOURCE)
        .expr(expression)
        .legend_format(legend)
        .ref_id(reference)
        .format(PromQueryFormat.TIME_SERIES)
    )


def _steps(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(dm.ThresholdsMode.ABSOLUTE)
        .steps([dm.Threshold(value=value, color=colour) for value, colour in steps])
    )


def _graph_mode() -> Any:
    return cm.BigValueGraphMode.NONE
