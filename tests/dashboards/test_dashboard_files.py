"""The committed dashboards: current, deterministic, without the SDK's traps; queries parse and variables exist."""

from __future__ import annotations

import re

import promql_parser
import pytest

from dashboards.__main__ import DASHBOARDS, main
from dashboards.grid import to_json
from tests.dashboards.panel_queries import FOLDER, board, panel_queries

NAMES = sorted(DASHBOARDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_json_is_current(name: str) -> None:
    """`python -m dashboards` writes it; twice the same."""
    assert to_json(DASHBOARDS[name]()) == (FOLDER / f"{name}.json").read_text("utf-8")
    assert to_json(DASHBOARDS[name]()) == to_json(DASHBOARDS[name]())


def test_check_says_what_is_stale(tmp_path, monkeypatch, capsys) -> None:
    """Exit 0 while current; 1 and the file's name when not; writing mends it."""
    assert main(["--check"]) == 0
    monkeypatch.setattr("dashboards.__main__.FOLDER", tmp_path)
    assert main(["--check"]) == 1
    assert "triage.json is not current" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_sdks_traps_is_left(name: str) -> None:
    """Panel ids are set and unique, no link or annotation has a placement, every panel names the data source variable."""
    tree = board(name)
    ids = [p["id"] for p in tree["panels"]]
    assert len(set(ids)) == len(ids)
    assert all("placement" not in part for part in [*tree.get("links", []), *tree["annotations"]["list"]])
    for panel in tree["panels"]:
        if panel["type"] not in ("row", "text"):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
            references = [t["refId"] for t in panel["targets"]]
            assert len(set(references)) == len(references), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap_and_fill_no_more_than_the_grid(name: str) -> None:
    """24 columns; no two panels share a cell."""
    taken: set[tuple[int, int]] = set()
    for panel in board(name)["panels"]:
        pos = panel["gridPos"]
        cells = {(x, y) for x in range(pos["x"], pos["x"] + pos["w"]) for y in range(pos["y"], pos["y"] + pos["h"])}
        assert pos["x"] + pos["w"] <= 24, panel.get("title")
        assert not cells & taken, panel.get("title")
        taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_queries_parse_and_use_variables_that_exist(name: str) -> None:
    """PromQL by its grammar; every `$name` is a variable of the dashboard or of Grafana."""
    tree = board(name)
    declared = {v["name"] for v in tree["templating"]["list"]}
    for query in panel_queries(tree):
        promql_parser.parse(query.expr)
    for panel in tree["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$\{?(\w+)\}?", target["expr"]))
            assert used <= declared | {"__rate_interval"}, panel["title"]


def test_the_order_is_that_of_triage() -> None:
    """The verdict first, the questions and the queue above the device, GPU utilisation last and with its caption."""
    panels = [p for p in board("triage")["panels"] if p["type"] != "row"]
    panels.sort(key=lambda p: (p["gridPos"]["y"], p["gridPos"]["x"]))
    titles = [p["title"] if p["type"] != "text" else "caption" for p in panels]
    assert titles[0] == "Open incidents"
    assert titles.index("The five questions over time") < titles.index("Waiting requests")
    assert titles.index("Time to first token, P50 and P95 of the last minute") < titles.index("Running requests")
    assert titles[-2:] == ["GPU utilisation (no evidence of health)", "caption"]
    assert "Do not read health" in panels[-1]["options"]["content"]
