"""What looking costs the engine, measured on real prometheus_client servers, and what the agent does about it."""

import asyncio

import pytest

from gpuwatch.config import EngineTarget, Lanes
from gpuwatch.sources.page.page_filter import COST_BUDGET_RATIO
from gpuwatch.sources.page.source import EngineSource
from tests.sources.serving_process import serving
from tests.sources.stub_server import HandClock


async def looked(url, seconds):
    """The source and its batches after `seconds` of its own clock, at the pace that it asks for."""
    clock = HandClock()
    source = EngineSource(EngineTarget(url, name="e"), clock)
    started, batches = clock.t, []
    while clock.t < started + seconds:
        batches.append(await source.poll(clock.t))
        clock.t += source.interval_s
    await source.aclose()
    return source, batches


def signals(batch):
    return {n: v for f in batch.frames for n, v in zip(f.names, f.values[0].tolist(), strict=True)}


@pytest.fixture(scope="module", params=["two_routes", "multiprocess", "dear"])
def watched(request):
    """A server of each kind, watched for twenty seconds of the agent's time; CPU seconds that they cost the server."""
    with serving(request.param) as (url, process):
        before = sum(process.cpu_times()[:2])
        source, batches = asyncio.run(looked(url, 20))
        return request.param, source, batches, sum(process.cpu_times()[:2]) - before


def test_every_look_brings_the_signals(watched):
    _, _, batches, _ = watched
    assert all(b.error is None for b in batches)
    assert all(signals(b)["req_waiting"] == 1 for b in batches)
    assert all(signals(b)["generated_tokens_total"] == 100 for b in batches)


def test_the_filter_is_found_where_it_works_and_given_up_where_it_does_not(watched):
    """An empty 200 in multiprocess mode and a server that ignores the names are told from an answer."""
    kind, source, batches, _ = watched
    fast = [b for b in batches if any(f.source == "page-fast" for f in b.frames)]
    assert source._filter.state == ("yes" if kind == "two_routes" else "no")
    assert bool(fast) == (kind == "two_routes")
    if fast:
        assert source._filter._path == "/metrics/", "the slash alone makes the difference"


def test_an_engine_that_is_dear_to_ask_is_asked_less_often(watched):
    """The pace follows the price: what a look takes, at the budget's share of a core, up to the longest pause."""
    kind, source, batches, _ = watched
    if kind == "two_routes":
        cheapest_s = min(b.took_s for b in batches[-8:])
        assert 1 / Lanes().fast_hz <= source.interval_s <= max(1 / Lanes().fast_hz, 2 * cheapest_s / COST_BUDGET_RATIO)
        assert len(batches) > 20 / 2.0
    else:
        assert source.interval_s > 2 / Lanes().fast_hz
    if kind == "dear":
        assert source.interval_s == 10.0, "a page of 20 ms at five times its duration"
        assert len(batches) <= 4


def test_what_looking_cost_is_near_its_budget(watched):
    """CPU of the server over the twenty seconds, first whole pages included; a loaded machine counts twice."""
    _, _, batches, cpu_s = watched
    assert cpu_s / 20 < 4 * COST_BUDGET_RATIO, f"{len(batches)} looks"
