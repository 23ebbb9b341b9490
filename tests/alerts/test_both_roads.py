"""Prometheus rule and Alertmanager sink tell of the same incident under the same labels, so both together notify once."""

import re

import msgspec
import promql_parser
import pytest

from gpuwatch.config import Config
from gpuwatch.model import Incident
from gpuwatch.rules import load_rules
from gpuwatch.server.metrics_page import View, render
from gpuwatch.sinks.alertmanager import labels_of
from tests.full_page import HEALTH, INCIDENT
from tests.metric_names import REPOSITORY, rules_of

SCOPE = {"cluster": "eu-1", "namespace": "llm", "pool": "chat", "team": "search"}


@pytest.mark.parametrize("rule", [*load_rules(), "unknown"])
def test_the_alert_has_the_same_labels_by_either_road(rule: str):
    incident = msgspec.convert(INCIDENT | {"rule": rule, "scope": SCOPE}, Incident)
    (alert,) = rules_of(REPOSITORY / "alerts" / f"{rule}.yml")
    by_prometheus = kept(alert["expr"], exported(incident)) | {"alertname": alert["alert"]}
    assert by_prometheus == dict(labels_of(incident, SCOPE))


def exported(incident: Incident) -> dict[str, str]:
    """The labels of the incident's series on the agent's page, with what a scrape adds to it."""
    view = View(levels={}, states=[], figures={}, open=[incident], health=HEALTH)
    series = re.search(r"^gpuwatch_incident_open\{(.*)\} 1$", render(view, Config(scope=SCOPE)), re.MULTILINE)
    assert series
    return dict(re.findall(r'(\w+)="([^"]*)"', series[1])) | {"instance": "10.0.0.7:9400", "job": "gpuwatch"}


def kept(expression: str, labels: dict[str, str]) -> dict[str, str]:
    """What is left of the labels after the aggregation of the alert."""
    aggregation = promql_parser.parse(expression).lhs
    selector = aggregation.expr
    for matcher in selector.matchers.matchers:
        if matcher.op == promql_parser.MatchOp.Equal:
            assert labels[matcher.name] == matcher.value
        else:
            assert re.fullmatch(matcher.value, labels[matcher.name])
    return {name: labels[name] for name in aggregation.modifier.labels if name in labels}
