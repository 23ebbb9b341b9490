"""Every query of every dashboard returns data from a real Prometheus that holds what the agent exported in a scenario.

The agent's own page is rendered every five seconds of the founding case in virtual time; promtool makes blocks of it,
Prometheus serves them, and each panel's query is asked as Grafana would ask it.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuwatch.agent.agent import Agent
from gpuwatch.config import Config
from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import calls, read_capture
from tests.dashboards.panel_queries import PanelQuery, board, panel_queries

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="needs prometheus and promtool")
EVERY_S = 5
QUERIES = list(panel_queries(board("triage")))


class Store(NamedTuple):
    """A Prometheus and the span of time that it knows."""

    url: str
    from_at: float
    until_at: float


def exported(folder: Path) -> tuple[str, float, float]:
    """What the agent's page said every five seconds of the founding case, as OpenMetrics with times."""
    agent = Agent(Config(state_dir=str(folder / "state"), host=False, scope={"pool": "chat"}), host="test")
    command = [sys.executable, "-m", "engine_shim", "simulate", "batch_thrashing", "--seed", "1", "--out", "-"]
    families: dict[str, tuple[str, list[str]]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        capture = read_capture(engine.stdout)
        for now, batches in calls(capture):
            agent.watch.last = agent.watch.pipeline.step(*quantized(now, batches))
            if now % EVERY_S < 1.0:
                _add(families, agent.desk.metrics(), now)
        start = capture.header.t
    asyncio.run(agent.close())
    lines = [line for name, (kind, rows) in families.items() for line in (f"# TYPE {name} {kind}", *rows)]
    return "\n".join([*lines, "# EOF", ""]), start, now


def _add(families: dict[str, tuple[str, list[str]]], page: str, now: float) -> None:
    """The samples of one page, by family; OpenMetrics names a counter's family without `_total`."""
    kinds = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        kind = kinds[name]
        family = name.removesuffix("_total") if kind == "counter" else name
        families.setdefault(family, (kind, []))[1].append(f"{line} {now:.0f}")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A real Prometheus over the exported scenario."""
    folder = tmp_path_factory.mktemp("prometheus")
    text, start, end = exported(folder)
    (folder / "metrics.om").write_text(text)
    data = folder / "data"
    subprocess.run(
        [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(folder / "metrics.om"), str(data)],
        check=True,
        capture_output=True,
    )
    (folder / "prometheus.yml").write_text("global: {}\n")
    port = _free_port()
    server = subprocess.Popen(
        [
            PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=warn",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(url, server)
        yield Store(url, start, end)
    finally:
        server.terminate()
        server.communicate(timeout=10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _await_ready(url: str, server: subprocess.Popen[str]) -> None:
    """Ask until it answers; the process's end is an answer too."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            try:
                _, errors = server.communicate(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"prometheus ended: {errors[-2000:]}")
    pytest.fail("prometheus was not ready in time")


def ask(store: Store, query: PanelQuery) -> list[dict[str, Any]]:
    """The series that Grafana would get for a panel over the whole scenario."""
    parameters = urllib.parse.urlencode(
        {"query": query.expr, "start": store.from_at, "end": store.until_at, "step": EVERY_S}
    )
    with urllib.request.urlopen(f"{store.url}/api/v1/query_range?{parameters}", timeout=10) as answer:
        read = json.load(answer)
    assert read["status"] == "success", read
    result: list[dict[str, Any]] = read["data"]["result"]
    return result


@pytest.mark.parametrize("query", QUERIES, ids=[f"{q.panel}: {q.legend or 'value'}" for q in QUERIES])
def test_a_query_returns_finite_data_with_the_labels_of_its_legend(store: Store, query: PanelQuery) -> None:
    """Not empty, some of it a number, and every label that the legend names is there."""
    series = ask(store, query)
    assert series, f"nothing for {query.expr}"
    values = [float(v) for s in series for _, v in s["values"]]
    assert any(math.isfinite(v) for v in values), query.expr
    for label in _labels(query.legend):
        assert all(label in s["metric"] for s in series), (label, series[0]["metric"])


def _labels(legend: str) -> list[str]:
    return [part.partition("}}")[0] for part in legend.split("{{")[1:]]


def test_table_columns_are_labels_that_exist(store: Store) -> None:
    """A table that names a column which no series has would show less than it says."""
    for panel in board("triage")["panels"]:
        if panel["type"] != "table":
            continue
        query = next(
            q for q in QUERIES if q.panel == panel["title"] and q.expr.startswith(("gpuwatch_inc", "gpuwatch_st"))
        )
        wanted = set(panel["transformations"][0]["options"]["include"]["names"])
        assert wanted <= set(ask(store, query)[0]["metric"]), panel["title"]


def test_the_dashboard_tells_the_founding_case(store: Store) -> None:
    """From the panels alone: a page for batch_thrashing, a queue that grew, and cycles."""
    by_panel = {q.panel: q for q in QUERIES}
    opened = {s["metric"]["rule"] for s in ask(store, by_panel["annotation Incidents"])}
    assert "batch_thrashing" in opened
    waiting = [float(v) for _, v in ask(store, by_panel["Waiting requests"])[0]["values"]]
    assert max(waiting[:16]) < 10 < max(waiting)
    cycles = [float(v) for _, v in ask(store, by_panel["Drain–refill cycles in the window"])[0]["values"]]
    assert max(cycles) >= 3
