"""What looking costs an engine: CPU of a real prometheus_client server, asked as the agent asks it."""

from __future__ import annotations

import asyncio

import psutil

from gpuwatch.config import Lanes
from gpuwatch.sources.page.engine_page import EnginePage
from gpuwatch.sources.page.page_filter import PageFilter
from gpuwatch.wire.exposition import parse
from gpuwatch.wire.http_get import ScrapeClient
from tests.bench.row import Row
from tests.sources.serving_process import serving

LOOKS, ROUNDS = 60, 5


def hot() -> Row:
    """The fast lane against the whole page, per look."""
    fast, _, whole = _prices()
    return Row("ms", 1.0, fast * 1e3, whole * 1e3,
        note="CPU of the server a look: its fast lane under a filter against its whole page of 450 series",
    )  # fmt: skip


def share() -> Row:
    """A core's share at the default rates: fast, slow and whole looks together."""
    fast, slow, whole = _prices()
    lanes = Lanes()
    now = fast * (lanes.fast_hz - lanes.slow_hz) + slow * lanes.slow_hz + whole / lanes.whole_page_every_s
    return Row("%", 1.0, now * 100, whole * lanes.fast_hz * 100,
        note="of the server's core at the default rates; naive reads whole pages as often",
    )  # fmt: skip


def _prices() -> tuple[float, float, float]:
    """CPU seconds of the server for a fast, a slow and a whole look: the least of some rounds, by turns."""
    with serving("two_routes") as (url, process):
        return asyncio.run(_measured(url, process))


async def _measured(url: str, process: psutil.Process) -> tuple[float, float, float]:
    client = ScrapeClient(url)
    body = (await client.get("/metrics")).body
    page = EnginePage("e")
    page.read(body, 0.0)
    dialect, seen = page.dialect, parse(body, frozenset()).names
    assert dialect is not None
    ask = PageFilter("/metrics")
    targets = [ask.target(names(page.prefix, seen), "/metrics/") for names in (dialect.fast_names, dialect.slow_names)]
    least = [float("inf")] * 3
    for _ in range(ROUNDS):
        for n, target in enumerate((*targets, "/metrics")):
            before = sum(process.cpu_times()[:2])
            for _ in range(LOOKS):
                await client.get(target)
            least[n] = min(least[n], (sum(process.cpu_times()[:2]) - before) / LOOKS)
    await client.aclose()
    return least[0], least[1], least[2]
