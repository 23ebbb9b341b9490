"""The Alertmanager example, judged by the real amtool and a real Alertmanager: routes, grouping, inhibition."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "alerts" / "alertmanager.example.yml"
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
needs_alertmanager = pytest.mark.skipif(ALERTMANAGER is None, reason="Alertmanager is not installed")


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_amtool
def test_the_example_passes_amtool_check_config():
    assert "SUCCESS" in amtool("check-config", str(EXAMPLE))


@needs_amtool
@pytest.mark.parametrize(
    ("severity", "receiver"), [("page", "pager"), ("ticket", "ticket"), ("info", "nobody"), ("", "ticket")]
)
def test_severity_chooses_the_receiver(severity: str, receiver: str):
    labels = ["alertname=GpuwatchOverload", "rule=overload", "family=demand"] + [f"severity={severity}"] * bool(
        severity
    )
    amtool("config", "routes", "test", f"--config.file={EXAMPLE}", f"--verify.receivers={receiver}", *labels)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, "Queue[tuple[str, dict[str, Any]]]"]]:
    """A webhook receiver on a free port: yields its address and the queue of (path, notification)."""
    got: Queue[tuple[str, dict[str, Any]]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.put((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


class Alertmanager:
    """A running Alertmanager and the few calls of its API that the tests need."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self.process = process

    def call(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            assert self.process.poll() is None, "Alertmanager ended at once"
            try:
                return void(self.call("/api/v2/status"))
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, "Alertmanager did not become ready"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.05)

    def fire(self, *alerts: dict[str, str]) -> None:
        now = datetime.now(UTC)
        times = {"startsAt": now.isoformat(), "endsAt": (now + timedelta(minutes=5)).isoformat()}
        self.call("/api/v2/alerts", [{"labels": labels} | times for labels in alerts])

    def names(self, **query: str) -> set[str]:
        asked = "&".join(f"{key}={value}" for key, value in query.items())
        return {alert["labels"]["alertname"] for alert in self.call(f"/api/v2/alerts?{asked}")}


def void(_: object) -> None:
    """Drop a value: the call was made for its effect."""


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, "Queue[tuple[str, dict[str, Any]]]"]]:
    with receiver() as (url, got):
        yield url, got


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory, webhook: tuple[str, Any]) -> Iterator[Alertmanager]:
    """The example as it is, but for the receivers' address and shorter waits before the first notification."""
    folder = tmp_path_factory.mktemp("alertmanager")
    text = EXAMPLE.read_text().replace("http://127.0.0.1:9095", webhook[0])
    text = text.replace("group_wait: 15s", "group_wait: 500ms").replace("group_wait: 5s", "group_wait: 500ms")
    (folder / "alertmanager.yml").write_text(text)
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(ALERTMANAGER),
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "no_proxy": "127.0.0.1"},
        )
        try:
            running = Alertmanager(f"http://127.0.0.1:{port}", process)
            running.wait_ready()
            yield running
        finally:
            process.terminate()
            process.wait(10)


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "namespace": "llm"} | labels


@needs_alertmanager
def test_one_cause_on_forty_engines_is_one_notification_to_the_pager(manager: Alertmanager, webhook: tuple[str, Any]):
    surge = {"pool": "chat", "rule": "overload", "family": "demand", "severity": "page"}
    manager.fire(*(alert("GpuwatchOverload", engine=f"vllm-{n}", **surge) for n in range(40)))
    path, notification = webhook[1].get(timeout=20)
    assert path == "/pager"
    assert len(notification["alerts"]) == 40
    assert notification["groupLabels"] == {"namespace": "llm", "pool": "chat", "family": "demand"}


@needs_alertmanager
def test_a_cause_silences_its_symptoms_on_the_same_engine_only(manager: Alertmanager):
    hang = {"rule": "engine_hang", "family": "engine_down", "severity": "page", "pool": "p1"}
    manager.fire(
        alert("GpuwatchEngineHang", engine="a", **hang),
        alert("GpuwatchTrafficSurge", engine="a", pool="p1", rule="traffic_surge", family="demand", severity="page"),
        alert("GpuwatchSloBurnFast", engine="a", pool="p1", family="slo", severity="page"),
        alert("GpuwatchLongContextKvPressure", engine="b", pool="p1", rule="x", family="kv_admission", severity="page"),
    )
    with_engine = {"filter": "pool%3D%22p1%22"}
    wanted = {"GpuwatchEngineHang", "GpuwatchLongContextKvPressure"}
    assert until(lambda: manager.names(inhibited="false", **with_engine), wanted) == wanted


@needs_alertmanager
def test_the_page_of_a_class_silences_its_own_earlier_ticket(manager: Alertmanager):
    labels = {"rule": "engine_hang", "family": "engine_down", "pool": "p2", "engine": "a"}
    manager.fire(
        alert("GpuwatchEngineHang", severity="ticket", **labels),
        alert("GpuwatchEngineHang", severity="page", **labels),
    )

    def severities() -> set[str]:
        found = manager.call("/api/v2/alerts?inhibited=false&filter=pool%3D%22p2%22")
        return {entry["labels"]["severity"] for entry in found}

    assert until(severities, {"page"}) == {"page"}


@needs_alertmanager
def test_an_agent_that_is_down_is_not_also_reported_blind(manager: Alertmanager):
    place = {"instance": "10.0.0.7:9400", "family": "agent", "severity": "ticket", "pool": "p3"}
    manager.fire(
        alert("GpuwatchAgentDown", **place),
        alert("GpuwatchAgentBlind", engine="a", **place),
        alert("GpuwatchAgentBlind", engine="z", **place | {"instance": "10.0.0.8:9400", "pool": "p4"}),
    )
    assert until(lambda: manager.names(inhibited="false", filter="pool%3D%22p3%22"), {"GpuwatchAgentDown"}) == {
        "GpuwatchAgentDown"
    }
    assert manager.names(inhibited="false", filter="pool%3D%22p4%22") == {"GpuwatchAgentBlind"}


def until(ask: Any, wanted: Any) -> Any:
    """Ask again until the answer is `wanted`, at most 10 s; return the last answer."""
    deadline = time.monotonic() + 10
    while (answer := ask()) != wanted and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return answer
