"""The agent's HTTP over real sockets: who may do what, how much, and what the page says."""

import http.client
import json
import shutil
import subprocess

import msgspec
import pytest

from gpuwatch.agent.agent import Agent
from gpuwatch.clock import WallClock
from gpuwatch.config import Bounds, Config, parse
from gpuwatch.model import Subject
from gpuwatch.server.metrics_page import ENGINE_SIGNALS, EngineFigures, View, render
from gpuwatch.server.routes import Guard
from tests.agent.builders import START, incident, opened, page_batch
from tests.full_page import HEALTH, full_page
from tests.sources.stub_server import HandClock

pytestmark = pytest.mark.anyio


class Site:
    """A running agent and a way to ask it."""

    def __init__(self, tmp_path, **settings):
        raw = {
            "engines": [{"url": "http://127.0.0.1:1", "name": "shim"}], "state_dir": str(tmp_path / "state"),
            "listen": "127.0.0.1:0", "otlp_listen": "127.0.0.1:0", "host": False,
        }  # fmt: skip
        self.hand = HandClock()
        self.agent = Agent(parse(raw | settings), WallClock(self.hand.now, lambda: self.hand.t))

    async def __aenter__(self):
        await self.agent.start()
        await self.agent.warmed()
        return self

    async def __aexit__(self, *_):
        await self.agent.close()

    async def ask(self, method, path, body=None, server=0, **headers):
        """Status and body of one request, on a thread of its own."""
        import anyio.to_thread

        def request():
            connection = http.client.HTTPConnection("127.0.0.1", self.agent.servers[server].port)
            try:
                connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            finally:
                connection.close()

        return await anyio.to_thread.run_sync(request)


async def test_health_metrics_and_readiness_are_open(tmp_path):
    """Ready once a second has been judged; an engine that is away is said and does not make it unready."""
    async with Site(tmp_path) as site:
        assert await site.ask("GET", "/healthz") == (200, "ok\n")
        assert (await site.ask("GET", "/readyz"))[0] == 503
        site.hand.t += 1
        await site.agent.watch.tick(site.hand.t, 5.0)
        status, body = await site.ask("GET", "/readyz", Host="pod.cluster.local")
        source = json.loads(body)["sources"][0]
        assert (status, source["name"], source["ok"]) == (200, "page:shim", False)
        assert "refused" in source["last_error"]
        status, page = await site.ask("GET", "/metrics", Host="10.0.0.7:9400")
        assert status == 200
        assert "gpuwatch_agent_up 1" in page
        assert (await site.ask("GET", "/nothing"))[0] == 404


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"Host": "localhost:9400"}, 200),
        ("GET", {"Host": "[::1]:9400"}, 200),
        ("GET", {"Host": "evil.example:9400"}, 403),
        ("POST", {}, 202),
        ("POST", {"Origin": "http://127.0.0.1:9400"}, 202),
        ("POST", {"Origin": "https://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Host": "127.0.0.1.evil.example"}, 403),
    ],
)
async def test_a_browser_on_the_same_machine_is_not_trusted(tmp_path, method, headers, status):
    """A page that rebinds its name to the loopback, or posts across origins, is refused."""
    async with Site(tmp_path) as site:
        path, body = ("/api/v1/state", None) if method == "GET" else ("/api/v1/changes", b"{}")
        assert (await site.ask(method, path, body, **headers))[0] == status


async def test_beyond_the_loopback_a_token_decides(tmp_path):
    """The guard itself: a foreign address needs the token, and without one configured nothing helps."""
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    def request(client, **headers):
        pairs = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        return Request({"type": "http", "method": "POST", "headers": pairs, "client": (client, 1)})

    closed, locked = Guard(lambda: "", 10), Guard(lambda: "s3cret", 10)
    locked.check(request("10.1.2.3", Authorization="Bearer s3cret", Host="pod", Origin="https://ui"))
    locked.check(request("127.0.0.1", Host="127.0.0.1"))
    for guard, authorization, status in ((closed, "Bearer ", 403), (locked, "Bearer nope", 401), (locked, "", 401)):
        with pytest.raises(HTTPException) as refused:
            guard.check(request("10.1.2.3", Authorization=authorization, Host="127.0.0.1"))
        assert refused.value.status_code == status


async def test_announcements_reach_the_record(tmp_path):
    """A change and a maintenance window are events of the engine; maintenance shows in its lifecycle."""
    async with Site(tmp_path) as site:
        site.hand.t += 1
        site.agent.watch.put(page_batch(site.hand.t))
        await site.agent.watch.tick(site.hand.t, 5.0)
        change = {"engine": "shim", "what": "change", "detail": {"deployed": "v2"}}
        assert (await site.ask("POST", "/api/v1/changes", json.dumps(change)))[0] == 202
        window = {"until_at": site.hand.t + 600, "reason": "upgrade"}
        assert (await site.ask("POST", "/api/v1/maintenance", json.dumps(window)))[0] == 202
        site.hand.t += 1
        tick = await site.agent.watch.tick(site.hand.t, 5.0)
        assert [s.lifecycle for s in tick.states] == ["maintenance"]
        calls = site.agent.watch.recorder.journal.calls()
        events = [(e.what, e.detail) for _, batches in calls for b in batches for e in b.events]
        assert ("change", {"deployed": "v2"}) in events
        assert any(what == "maintenance" and detail["reason"] == "upgrade" for what, detail in events)


BAD_BODIES = {
    "not JSON": (b"{", 400, "Input data was truncated"),
    "an unknown key": (b'{"wat": 1}', 400, "wat"),
    "a wrong type": (b'{"at": "now"}', 400, "$.at"),
    "an unknown kind": (b'{"what": "explosion"}', 400, "explosion"),
    "an unknown engine": (b'{"engine": "nobody"}', 400, "known: shim"),
    "a time far away": (b'{"at": 1}', 400, "at: not within"),
    "a body that is too large": (b'{"engine": "' + b"x" * 70_000 + b'"}', 413, "65536 bytes"),
}


@pytest.mark.parametrize("what", BAD_BODIES)
async def test_a_bad_announcement_is_refused_and_says_why(tmp_path, what):
    """400 or 413 with the key that is wrong; nothing is recorded."""
    body, status, says = BAD_BODIES[what]
    async with Site(tmp_path) as site:
        got, answer = await site.ask("POST", "/api/v1/changes", body)
        assert got == status
        assert says in answer


async def test_a_body_without_a_length_is_bounded_too(tmp_path):
    """Chunks are counted as they come."""
    async with Site(tmp_path) as site:
        status, _ = await site.ask("POST", "/api/v1/changes", iter([b"x" * 40_000] * 3))
        assert status == 413


async def test_incidents_state_and_verdict_are_json(tmp_path):
    """What the store holds, one by one or all; the verdict is the published form."""
    async with Site(tmp_path) as site:
        site.agent.watch.store.add([opened("abc")])
        status, body = await site.ask("GET", "/api/v1/incidents?status=open&limit=5")
        assert (status, [i["id"] for i in json.loads(body)["incidents"]]) == (200, ["abc"])
        status, body = await site.ask("GET", "/api/v1/incidents/abc")
        assert json.loads(body)["transitions"] == [{"kind": "opened", "at": START + 30}]
        assert (await site.ask("GET", "/api/v1/incidents/zzz"))[0] == 404
        assert (await site.ask("GET", "/api/v1/incidents?limit=many"))[0] == 400
        assert json.loads((await site.ask("GET", "/api/v1/verdict"))[1])["schema"] == 1
        assert json.loads((await site.ask("GET", "/api/v1/state"))[1])["states"] == []


async def test_spans_come_in_at_both_ports(tmp_path):
    """The OTLP port knows spans and nothing else."""
    async with Site(tmp_path) as site:
        for server in (0, 1):
            status, body = await site.ask("POST", "/v1/traces", b"{}", server, Content_Type="application/json")
            assert (status, body) == (200, "{}")
        assert (await site.ask("GET", "/metrics", server=1))[0] == 404
        assert (await site.ask("POST", "/v1/traces", b"\xff", 1))[0] == 400


def check_metrics(page):
    """What promtool has against a page."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")
def test_promtool_has_nothing_against_the_full_page():
    """Names, types, units and help are as Prometheus wants them."""
    assert check_metrics(full_page()) == ""


def test_hostile_label_values_stay_inside_their_quotes_and_are_cut():
    """A name made of quotes, line feeds and a megabyte of text is one short label."""
    name = 'x"} 1\ngpuwatch_incident_open{rule="fake' + "y" * 10**6
    subject = Subject(engine=name)
    view = View({subject: {"req_running": 1.0}}, (), {subject: EngineFigures(up=True)}, (), HEALTH)
    page = render(view, Config())
    assert not any(line.startswith("gpuwatch_incident_open") for line in page.splitlines())
    assert max(map(len, page.splitlines())) < 400
    if shutil.which("promtool"):
        assert check_metrics(page) == ""


def test_series_are_bounded_and_what_was_cut_is_counted():
    """Incidents come first; what does not fit is counted, and the agent's health is always there."""
    subjects = {Subject(engine=f"e{i}"): dict.fromkeys(ENGINE_SIGNALS, 1.0) for i in range(3)}
    view = View(subjects, (), {}, (incident(),), HEALTH)
    page = render(view, Config(bounds=Bounds(metric_series=10)))
    series = [line for line in page.splitlines() if not line.startswith(("#", "gpuwatch_agent"))]
    assert len(series) == 30
    assert any(line.startswith("gpuwatch_incident_open") for line in series)
    cut = 3 + 3 * (len(ENGINE_SIGNALS) + 1) - 30
    assert f'gpuwatch_agent_dropped_total{{what="metric_series"}} {cut}' in page
    assert "gpuwatch_agent_up 1" in page


def test_what_is_not_known_is_not_on_the_page():
    """NaN and None are left out: missing is not zero."""
    subject = Subject(engine="a")
    view = View(
        {subject: {}}, (), {subject: EngineFigures()}, (), msgspec.structs.replace(HEALTH, tick_seconds=float("nan"))
    )
    page = render(view, Config())
    assert "NaN" not in page
    assert "gpuwatch_ttft_p95_seconds" not in page
    assert "gpuwatch_scrape_up" not in page
