"""The lag of the front end's event loop is on the page, and is as long as what blocks the loop."""

import asyncio
import threading

import pytest

from engine_shim.telemetry.exposition import Page
from engine_shim.telemetry.loop_page import LoopLag
from gpuwatch.dialects import all_dialects
from gpuwatch.sources.page.engine_page import EnginePage

BLOCKED_S = 0.4


async def silent(scope, receive, send):
    """An application that does nothing."""


async def turns(of, lag):
    """Let the loop go round until there are so many observations."""
    async with asyncio.timeout(20):
        while lag.seconds.cumulative()[-1] < of:  # noqa: ASYNC110  (going round is what is waited for)
            await asyncio.sleep(0)


def test_a_loop_that_is_blocked_is_late_by_that_much():
    async def play():
        lag = LoopLag()
        app = lag.around(silent)
        await app({"type": "lifespan"}, None, None)
        await asyncio.sleep(0)
        threading.Event().wait(BLOCKED_S)
        await turns(1, lag)
        first_s = lag.seconds.sum
        await app({"type": "lifespan"}, None, None)
        return first_s, Page(lag.families()).render().decode()

    late_s, page = asyncio.run(play())
    assert late_s >= BLOCKED_S - 0.11
    assert "shim:event_loop_lag_seconds_count 1" in page


def test_the_agent_reads_it():
    page = (
        "shim:num_requests_running 0\nshim:num_requests_waiting 0\n"
        'shim:event_loop_lag_seconds_bucket{le="0.1"} 3\nshim:event_loop_lag_seconds_bucket{le="+Inf"} 4\n'
        "shim:event_loop_lag_seconds_sum 0.9\nshim:event_loop_lag_seconds_count 4\n"
    )
    (told,) = EnginePage("e").read(page.encode(), 5.0, "whole", float("nan")).histograms
    assert (told.name, told.count, told.sum) == ("event_loop_lag_seconds", 4, 0.9)


@pytest.mark.parametrize("name", sorted(all_dialects()))
def test_every_engine_shows_it_or_says_why_not(name):
    dialect = all_dialects()[name]
    assert ("event_loop_lag_seconds" in dialect.histograms) != ("event_loop_lag_seconds" in dialect.absent)
