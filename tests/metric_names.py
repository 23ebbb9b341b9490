"""Which metrics an expression, a dashboard, an alert or a runbook mentions: PromQL is parsed, prose is searched."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

REPOSITORY = Path(__file__).parents[1]
_FENCE = re.compile(r"```promql\n(.*?)```", re.DOTALL)
_IN_PROSE = re.compile(r"`(gpuwatch_[a-z0-9_]+)(?:\{[^`]*\})?`")
_VARIABLE = re.compile(r"\$\{?__(?:rate_interval|interval|range)\}?")


def in_query(query: str) -> set[str]:
    """The metric names that a PromQL query selects. Raises ValueError where it does not parse."""
    return set(_selected(promql_parser.parse(_VARIABLE.sub("5m", query))))


def _selected(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name or _name_matcher(node)
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _selected(node.vector_selector)
    else:
        for field in ("lhs", "rhs", "expr", "param"):
            if (child := getattr(node, field, None)) is not None:
                yield from _selected(child)
        for argument in getattr(node, "args", ()):
            yield from _selected(argument)


def _name_matcher(node: Any) -> str:
    names = [m.value for m in node.matchers.matchers if m.name == "__name__"]
    if not names:
        raise ValueError("a selector without a metric name reads every series of the server")
    return str(names[0])


def queries_of_runbook(text: str) -> list[str]:
    """The queries of a page: each line of a promql block is one."""
    return [line for block in _FENCE.findall(text) for line in block.splitlines() if line.strip()]


def in_runbook(text: str) -> set[str]:
    """Names in the queries of a page and between backticks in its prose."""
    names = set(_IN_PROSE.findall(text))
    for query in queries_of_runbook(text):
        names |= in_query(query)
    return names


def rules_of(file: Path) -> list[dict[str, Any]]:
    """Every rule of a Prometheus rule file, alerts and recordings."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def queries_of_dashboard(file: Path) -> list[str]:
    """Every query of a Grafana dashboard: targets of panels and annotations."""
    return list(_expressions(json.loads(file.read_text())))


def _expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"]
        for child in node.values():
            yield from _expressions(child)
    elif isinstance(node, list):
        for child in node:
            yield from _expressions(child)
