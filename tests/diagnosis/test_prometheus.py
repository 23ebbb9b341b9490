"""A real Prometheus over the pages of a pool: what is asked, what is put together again, and what is said of the pool."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from gpuwatch.cli.main import main
from gpuwatch.config import Config
from gpuwatch.diagnose import Asked, MaterialError, ask_prometheus
from gpuwatch.diagnose.prometheus.client import PrometheusClient, headers_from
from gpuwatch.diagnose.prometheus.rebuilt import pages
from tests.diagnosis.recordings import START, engine_pages

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="needs prometheus and promtool")
EVERY = 5
DOWN_FROM, GONE_FROM = START + 200, START + 150
UNTIL = START + 331


class Backfill:
    """Samples by family, as OpenMetrics wants them."""

    def __init__(self):
        self.families = {}

    def page(self, body, at, labels):
        kinds = dict(line.split()[2:4] for line in body.splitlines() if line.startswith("# TYPE"))
        for line in body.splitlines():
            if line and not line.startswith("#"):
                head, value = line.rsplit(" ", 1)
                name, _, own = head.partition("{")
                kind = kinds.get(name) or kinds.get(re.sub(r"_(bucket|sum|count)$", "", name), "unknown")
                family = name.removesuffix("_total") if kind == "counter" else name
                if kind == "histogram":
                    family = re.sub(r"_(bucket|sum|count)$", "", name)
                inner = ",".join(filter(None, (own.rstrip("}"), labels)))
                self.families.setdefault(family, (kind, {}))[1].setdefault(f"{name}{{{inner}}}", []).append((at, value))

    def text(self):
        lines = []
        for family, (kind, series) in self.families.items():
            lines.append(f"# TYPE {family} {kind}")
            lines += [f"{head} {value} {at:.3f}" for head, points in series.items() for at, value in points]
        return "\n".join([*lines, "# EOF", ""])


def target(pod, host):
    return f'job="llm",instance="{host}:8000",pod="{pod}",namespace="prod"'


def pool():
    """chat-a cycles; chat-b to chat-d are well; chat-b's series end early, chat-c is down from a point on."""
    store = Backfill()
    worlds = {"chat-a": ("batch_thrashing", 1), "chat-b": ("healthy_steady", 1), "chat-c": ("healthy_steady", 2)}
    worlds["chat-d"] = ("healthy_steady", 3)
    for n, (pod, (scenario, seed)) in enumerate(worlds.items()):
        where = target(pod, f"10.0.0.{n}")
        for at, body in engine_pages(scenario, seed)[n::EVERY]:
            if pod == "chat-b" and at > GONE_FROM:
                continue
            down = pod == "chat-c" and at > DOWN_FROM
            if not down:
                store.page(body, at, where)
            store.page(f"# TYPE up gauge\nup {0 if down else 1}\n", at, where)
            store.page(
                f"# TYPE scrape_duration_seconds gauge\nscrape_duration_seconds {10 if down else 0.01}\n", at, where
            )
            gpu = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-{pod}",exported_pod="{pod}"}} {80 + int(at) % 15}'
            store.page(
                f"# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n{gpu}\n", at, 'job="dcgm",instance="10.9.9.9:9400",pod="dcgm-7"'
            )
            for what, count in (("periods", 10), ("throttled_periods", 9)):
                name, at_s = f"container_cpu_cfs_{what}_total", int(at - START)
                cfs = f'# TYPE {name} counter\n{name}{{container="engine"}} {count * at_s}\n'
                store.page(cfs, at, f'job="kubelet",instance="10.9.0.1:10250",pod="{pod}",namespace="prod"')
        store.page("# TYPE up gauge\nup 0\n", START + 100, target("chat-z", "10.0.0.99"))
    store.page(
        '# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{UUID="GPU-other"} 5\n', START + 60, 'job="dcgm"'
    )
    return store


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "pool.om").write_text(pool().text())
    command = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(folder / "pool.om"), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = int(sock.getsockname()[1])
    server = subprocess.Popen(
        [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=warn"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        await_ready(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=10)


def await_ready(url, server):
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


def ask(url, **more):
    return ask_prometheus(Asked(url, str(START), str(UNTIL), **more), Config(), UNTIL)


@pytest.fixture(scope="module")
def answer(url):
    return ask(url)


@needs_prometheus
def test_each_replica_is_judged_and_the_pool_told_as_a_whole(answer):
    """One cycles, one is down, one has ended, one target never came up; forty pages would be none."""
    paged = {(i.rule, i.subject["engine"]) for i in answer.verdict.incidents if i.severity != "info"}
    assert ("batch_thrashing", "chat-a") in paged
    assert {engine for _, engine in paged} <= {"chat-a", "chat-c"}, "a replica that is down may be said to be"
    lines = "\n".join(answer.pool)
    assert "4 replicas" in lines
    assert "batch_thrashing on 1 of 4: chat-a" in lines
    assert re.search(r"differs: chat-a: .*kv_usage_ratio", lines)
    assert re.search(r"missing: chat-c: down for 100 s", lines)
    assert "missing: chat-b: its series end at 16:02:" in lines
    assert "missing: chat-z: down all the time" in lines


@needs_prometheus
def test_pages_are_put_together_at_the_pace_of_the_scrapes(answer):
    assert {one.name: one.cadence_s for one in answer.found} == dict.fromkeys(
        ("chat-a", "chat-b", "chat-c", "chat-d"), EVERY
    )
    sources = {(s.name, s.subject): s for s in answer.verdict.sources}
    assert sources["page:chat-a", "engine/chat-a/0"].errors == 0
    assert "timed out after 10 s" in sources["page:chat-c", "engine/chat-c/0"].last_error


@needs_prometheus
def test_a_device_belongs_to_the_pod_that_the_exporter_names(answer):
    (thrashing,) = [i for i in answer.verdict.incidents if i.rule == "batch_thrashing"]
    assert thrashing.subject["gpu"] == "GPU-chat-a"
    assert any("1 GPUs are left out" in note for note in answer.notes)


@needs_prometheus
def test_the_container_of_the_pod_is_seen_too(answer):
    """One look for each scrape of cAdvisor, and nothing is said of its quota not being seen."""
    (host,) = [s for s in answer.verdict.sources if (s.name, s.subject) == ("host", "host/10.0.0.0")]
    assert (host.polls, host.errors) == (66, 0)
    assert not any("CPU quota" in line for line in answer.judged.cannot_tell)


@needs_prometheus
def test_matchers_narrow_to_one_replica_and_the_command_prints_it(url):
    done = CliRunner().invoke(
        main,
        [
            "diagnose",
            "--prometheus",
            url,
            "--from",
            str(START),
            "--to",
            str(UNTIL),
            "--match",
            'pod="chat-a"',
            "--json",
        ],
    )
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)
    assert verdict["incidents"][0]["rule"] == "batch_thrashing"
    assert {s["name"] for s in verdict["sources"]} >= {"page:chat-a", "dcgm"}


@needs_prometheus
def test_range_queries_give_the_same_class(url):
    """With a step, in pieces of at most 11,000 points; the times are the step's."""
    told = ask(url, match='pod="chat-a"', step_s=5.0)
    assert "batch_thrashing" in {i.rule for i in told.verdict.incidents}


@needs_prometheus
def test_samples_come_in_pieces_without_doubles(url, monkeypatch):
    from gpuwatch.diagnose.prometheus import client as module

    with PrometheusClient(url) as client:
        whole = client.samples('up{pod="chat-a"}', START, UNTIL)
        monkeypatch.setattr(module, "PIECE_S", 7.0)
        pieces = client.samples('up{pod="chat-a"}', START, UNTIL)
        monkeypatch.setattr(module, "MOST_POINTS", 10)
        steps = client.samples('up{pod="chat-a"}', START, UNTIL, 1.0)
    assert len(whole[0].at) == 66
    assert (pieces[0].at, pieces[0].values) == (whole[0].at, whole[0].values)
    assert len(steps[0].at) == len(set(steps[0].at)) == 331


@needs_prometheus
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"since": ""}, "--from: needed"),
        ({"since": "soon"}, "--from: 'soon' is no time"),
        ({"since": str(UNTIL), "until": str(START)}, "--from: is not before --to"),
        ({"match": 'pod="nobody"'}, 'no series of an engine with {pod="nobody"}'),
        ({"match": "pod="}, "HTTP 400"),
        ({"auth_file": "/nowhere"}, "/nowhere: No such file"),
    ],
)
def test_what_cannot_be_asked_is_said_with_its_key(url, more, says):
    asked = {"since": str(START), "until": str(UNTIL)} | more
    with pytest.raises(MaterialError) as error:
        ask_prometheus(Asked(url, **asked), Config(), UNTIL)
    assert says in str(error.value)


def test_nothing_that_answers_is_an_error_and_no_traceback():
    done = CliRunner().invoke(main, ["diagnose", "--prometheus", "http://127.0.0.1:1", "--from", "-2h"])
    assert done.exit_code == 2
    assert "http://127.0.0.1:1: ConnectError" in done.output
    assert CliRunner().invoke(main, ["diagnose"]).exit_code == 2
    assert CliRunner().invoke(main, ["diagnose", "x", "--prometheus", "y", "--from", "-2h"]).exit_code == 2


def test_credentials_come_from_a_file(tmp_path):
    """A bare token, a whole value, or header lines; never from the command line."""
    file = tmp_path / "auth"
    for text, headers in (
        ("s3cret\n", {"Authorization": "Bearer s3cret"}),
        ("Basic dXNlcg==", {"Authorization": "Basic dXNlcg=="}),
        ("X-Scope-OrgID: team\nAuthorization: Bearer x\n", {"X-Scope-OrgID": "team", "Authorization": "Bearer x"}),
    ):
        file.write_text(text)
        assert headers_from(str(file)) == headers
    file.write_text("")
    with pytest.raises(MaterialError, match="empty"):
        headers_from(str(file))


def test_a_page_gets_back_the_labels_that_prometheus_moved():
    """Its own labels stay, the target's go; a hostile value stays one label; a second scraper's copy counts once."""
    from gpuwatch.diagnose.prometheus.client import Samples

    hostile = 'a"} 1\nup{x="'
    labels = {
        "__name__": "q",
        "job": "j",
        "instance": "i",
        "pod": "dcgm",
        "exported_pod": "mine",
        "model_name": hostile,
    }
    told = list(pages([Samples(labels, [5.0], ["1"]), Samples({**labels, "job": "k"}, [5.0], ["1"])]))
    assert told == [(5.0, b'q{model_name="a\\"} 1\\nup{x=\\"",pod="mine"} 1\n')]


def test_samples_of_one_time_are_one_page():
    from gpuwatch.diagnose.prometheus.client import Samples

    told = dict(pages([Samples({"__name__": "a"}, [1.0, 2.0], ["1", "2"]), Samples({"__name__": "b"}, [2.0], ["NaN"])]))
    assert told == {1.0: b"a{} 1\n", 2.0: b"a{} 2\nb{} NaN\n"}
