"""The doctor at an engine's door: what answers there, and the one change that would help."""

import asyncio

import pytest

from gpuwatch.doctor.engine_page import look_at
from tests.sources.stub_server import Reply, StubServer

PAGE = b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 0\n'
SGLANG = b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\n"
PROCESS = b"python_gc_collections_total 5\nprocess_start_time_seconds 1764000000\n"
LOST = Reply(status=404, body=b"not found")


def looked(answers, path="", dialect="auto"):
    """Look at a server that answers `answers` by path, and 404 elsewhere."""

    async def run():
        async with StubServer(lambda target: answers.get(target, LOST)) as server:
            return await look_at("e", server.url + path, 2.0, dialect), server

    return asyncio.run(run())


def test_a_page_is_a_page():
    look, server = looked({"/metrics": Reply(body=PAGE)})
    assert (look.finding, look.dialect, look.change) == ("page", "vllm", "")
    assert server.targets == ["/metrics"]


def test_a_redirect_on_the_same_address_is_followed_once():
    look, _ = looked({"/metrics": Reply(status=307, headers={"Location": "/metrics/"}), "/metrics/": Reply(body=PAGE)})
    assert (look.finding, look.dialect) == ("page", "vllm")
    look, server = looked({"/metrics": Reply(status=302, headers={"Location": "http://elsewhere:1/metrics"})})
    assert look.finding == "not found"
    assert "http://elsewhere:1/metrics" in look.change
    assert server.targets == ["/metrics"], "another address is not asked"


def test_a_page_under_another_path_is_found():
    look, _ = looked(
        {"/prometheus/metrics": Reply(body=b"trtllm_request_success_total 6\n"), "/metrics": Reply(body=b"[]")}
    )
    assert look.finding == "page elsewhere"
    assert look.change.endswith("/prometheus/metrics")
    look, _ = looked({"/metrics": Reply(body=PAGE)}, "/wrong")
    assert (look.finding, look.dialect) == ("page elsewhere", "vllm")


@pytest.mark.parametrize(
    ("path", "says"),
    [("/version", "--disable-log-stats"), ("/get_server_info", "--enable-metrics"), ("/none", "start the engine")],
)
def test_a_page_without_engine_series_names_the_switch_of_that_engine(path, says):
    look, _ = looked({"/metrics": Reply(body=PROCESS), path: Reply(body=b'{"version": "0.32.0"}')})
    assert look.finding == "no engine series"
    assert says in look.change


@pytest.mark.parametrize("status", [401, 403])
def test_a_locked_door_is_said(status):
    look, _ = looked({"/metrics": Reply(status=status)})
    assert look.finding == "locked"
    assert "proxy" in look.change


@pytest.mark.parametrize(
    ("body", "finding", "says"),
    [
        (b"<!DOCTYPE html><html></html>", "web page", "another port"),
        (b"DCGM_FI_DEV_GPU_UTIL{} 5\n", "another exporter", "gpu_url"),
        (b"node_load1 5\n", "another exporter", "node-exporter"),
        (b'[{"iter": 5}]', "json", "/prometheus/metrics"),
        (b'{"object": "list"}', "json", "an API"),
        (b"", "no engine series", "start the engine"),
    ],
)
def test_a_wrong_port_is_told_by_what_answers(body, finding, says):
    look, _ = looked({"/metrics": Reply(body=body)})
    assert look.finding == finding
    assert says in look.change + look.says


def test_the_wrong_dialect_is_said_with_the_right_one():
    look, _ = looked({"/metrics": Reply(body=SGLANG)}, dialect="vllm")
    assert (look.finding, look.change) == ("another exporter", 'dialect = "sglang", or "auto"')


def test_an_engine_without_its_page_is_told_by_what_only_it_answers():
    look, _ = looked({"/get_server_info": Reply(body=b"{}")})
    assert look.finding == "not found"
    assert "--enable-metrics" in look.change


def test_a_closed_port_and_one_that_never_answers():
    look = asyncio.run(look_at("e", "http://127.0.0.1:1", 0.5))
    assert look.finding in ("refused", "page elsewhere")
    assert look.change

    async def silent():
        forever = asyncio.Event()
        async with StubServer(lambda _: Reply(wait=forever)) as server:
            found = await look_at("e", server.url, 0.2)
            forever.set()
            return found

    look = asyncio.run(silent())
    assert look.finding == "slow"
    assert "timeout_s" in look.change
