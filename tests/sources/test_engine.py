"""The engine source against real servers: prometheus_client's own, and one that misbehaves."""

import asyncio
import re
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gpuwatch.config import Bounds, EngineTarget, Lanes
from gpuwatch.sources.page.source import EngineSource
from gpuwatch.sources.poll import Poller
from tests.sources.stub_server import HandClock, Reply, StubServer

VLLM = (Path(__file__).parent.parent / "captures" / "vllm-0.32.0-synthetic.txt").read_bytes()


def values(batch, source=None):
    return {n: v for f in batch.frames if source in (None, f.source) for n, v in zip(f.names, f.values[0], strict=True)}


def source_for(url, clock=None, **settings):
    return EngineSource(EngineTarget(url, name="e"), clock or HandClock(), **settings)


async def poll_for(source, clock, seconds, hertz=5):
    """Poll at a steady pace, as the agent would; returns the batches."""
    batches = []
    for _ in range(int(seconds * hertz)):
        batches.append(await source.poll(clock.now()))
        clock.t += 1 / hertz
    return batches


class Engine:
    """What a vLLM-like process registers with prometheus_client."""

    def __init__(self):
        self.registry = CollectorRegistry()
        labels = {"labelnames": ["engine", "model_name"], "registry": self.registry}
        self.running = Gauge("vllm:num_requests_running", "r", **labels).labels("0", "m")
        self.waiting = Gauge("vllm:num_requests_waiting", "w", **labels).labels("0", "m")
        self.tokens = Counter("vllm:generation_tokens", "t", **labels).labels("0", "m")
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "t", **labels).labels("0", "m")
        self.other = [Gauge(f"other_{i}", "noise", registry=self.registry) for i in range(50)]


@contextmanager
def served(engine):
    server, thread = start_http_server(0, "127.0.0.1", engine.registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_real_prometheus_client_is_asked_for_a_few_names_and_for_more_when_due():
    """Whole page, then the filter is found, then fast polls with a slow one every two seconds."""
    engine, clock = Engine(), HandClock()
    engine.running.set(3)
    engine.ttft.observe(0.2)

    async def main(url):
        source = source_for(url, clock)
        first = await source.poll(clock.now())
        clock.t += 0.2
        engine.running.set(4)
        engine.tokens.inc(17)
        second = await source.poll(clock.now())
        later = await poll_for(source, clock, 4)
        await source.aclose()
        return first, second, later

    with served(engine) as url:
        first, second, later = asyncio.run(main(url))
    assert values(first)["req_running"] == 3
    assert [h.name for h in first.histograms] == ["ttft_seconds"]
    assert first.info[0].labels["model"] == "m"
    assert values(second, "page-fast")["req_running"] == 4
    assert values(second, "page-fast")["generated_tokens_total"] == 17
    assert second.histograms == ()
    assert 1 <= sum(bool(b.histograms) for b in later) <= 3
    assert all("req_running" not in values(b, "page") for b in later), "one cadence a series"
    assert all(values(b)["scrape_up"] == 1 and values(b)["scrape_seconds"] > 0 for b in later)


def filtering(page, *, honours="/metrics/", empty=False):
    """An engine that honours a filter under one path, or answers it with an empty page."""

    def answer(target):
        path, asked = urlsplit(target).path, set(parse_qs(urlsplit(target).query).get("name[]", ()))
        if not asked or path != honours:
            return Reply(page())
        lines = page().decode().splitlines()
        kept = [line for line in lines if line.split("{")[0].split(" ")[0] in asked]
        return Reply(b"" if empty else ("\n".join(kept) + "\n").encode())

    return answer


def test_vllm_is_filtered_under_the_trailing_slash_only():
    async def main():
        clock = HandClock()
        async with StubServer(filtering(lambda: VLLM)) as server:
            source = source_for(server.url, clock)
            batches = await poll_for(source, clock, 3)
            await source.aclose()
            return server.targets, batches

    targets, batches = asyncio.run(main())
    assert targets[0] == "/metrics"
    assert all(t.startswith("/metrics/?name%5B%5D=") for t in targets[1:])
    assert max(map(len, targets)) < 8000
    assert all(b.error is None and b.dropped == 0 for b in batches)
    slow = next(b for b in batches[1:] if b.histograms)
    assert {h.name for h in slow.histograms} == {h.name for h in batches[0].histograms}


@pytest.mark.parametrize("empty", [True, False], ids=["empty-200", "ignored"])
def test_without_a_usable_filter_whole_pages_are_read_at_a_pace_that_the_engine_can_afford(empty):
    async def main():
        clock = HandClock()
        answer = filtering(lambda: VLLM, honours="/metrics/" if empty else "/nowhere", empty=empty)
        async with StubServer(answer) as server:
            source = source_for(server.url, clock)
            batches = await poll_for(source, clock, 2)
            await source.aclose()
            return server.targets, batches, source.interval_s

    targets, batches, interval_s = asyncio.run(main())
    assert sum("?" in t for t in targets) <= 2, "tried once under each path"
    assert all(values(b, "page")["req_running"] == 41 for b in batches)
    assert not any(f.source == "page-fast" for b in batches for f in b.frames)
    cheapest = min(b.took_s for b in batches[-8:])
    assert interval_s >= min(5 * cheapest / 0.01, 0.2)


def test_a_filter_that_stops_working_is_noticed_in_the_same_poll():
    """A restart into multiprocess mode answers the filter with an empty 200."""
    empty = []

    async def main():
        clock = HandClock()

        def answer(target):
            return filtering(lambda: VLLM, empty=bool(empty))(target)

        async with StubServer(answer) as server:
            source = source_for(server.url, clock)
            await poll_for(source, clock, 1)
            empty.append(1)
            batches = await poll_for(source, clock, 1)
            await source.aclose()
            return batches

    assert all(values(b)["req_running"] == 41 for b in asyncio.run(main()))


def test_while_a_ring_is_live_the_page_is_asked_once_a_second():
    live = [False]
    source = source_for("http://127.0.0.1:1", ring_is_live=lambda: live[0])
    assert source.interval_s == pytest.approx(0.2)
    live[0] = True
    assert source.interval_s == pytest.approx(1.0)


def restarted_page(fall):
    """The page of an engine that has just started: a later stamp, counters near zero."""
    text = VLLM.decode()
    if fall:
        text = text.replace("1.76398996883e+09", "1.76400100000e+09")
        lines = [
            line.rsplit(" ", 1)[0] + " 0.0" if line.startswith("vllm:") and "_info" not in line else line
            for line in text.splitlines()
        ]
        text = "\n".join(lines) + "\n"
    return text.encode()


def test_a_restart_is_an_event_after_one_look_at_the_whole_page():
    restarted = []

    async def main():
        clock = HandClock()
        async with StubServer(filtering(lambda: restarted_page(bool(restarted)))) as server:
            source = source_for(server.url, clock)
            before = await poll_for(source, clock, 3)
            restarted.append(1)
            after = await poll_for(source, clock, 3)
            await source.aclose()
            return before, after

    before, after = asyncio.run(main())
    assert [e for b in before for e in b.events] == []
    events = [(i, e) for i, b in enumerate(after) for e in b.events]
    assert [(e.what, e.detail["epoch"]) for _, e in events] == [("restart", "2")]
    assert events[0][0] <= 1, "within two fast polls"
    assert [values(b)["req_arrived_total"] for b in after[3:5]] == [0, 0]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(b"oops", status=500), "status: HTTP 500"),
        (Reply(VLLM, send_bytes=20_000), "half_body"),
        (Reply(VLLM[:20_000], framed=False), "has no end"),
        (Reply(b"x" * 9_000_000), "too_large"),
        (Reply(VLLM + b"x 1\n" * 100_001), "100000 lines are read"),
        (Reply(b"<html>404</html>\n"), "no dialect"),
        (Reply(b""), "no dialect"),
    ],
    ids=["500", "half", "cut", "large", "long", "html", "empty"],
)
def test_a_bad_answer_is_an_error_and_the_next_good_one_is_read(reply, error):
    async def main():
        clock, replies = HandClock(), [Reply(VLLM), reply]
        async with StubServer(lambda _: replies.pop(0) if replies else Reply(VLLM)) as server:
            source = source_for(server.url, clock)
            await source.poll(clock.now())
            source._filter.refuse(clock.now())  # whole pages only
            bad = await source.poll(clock.now())
            good = await source.poll(clock.now())
            await source.aclose()
            return bad, good

    bad, good = asyncio.run(main())
    assert error in bad.error
    assert values(bad)["scrape_up"] == 0
    assert not bad.events
    assert not good.events, "a page that could not be read is no restart"
    assert values(good)["req_running"] == 41


def test_nan_values_are_missing_and_not_zero():
    page = VLLM.replace(b'num_requests_running{engine="0",model_name="llama-8b"} 41.0',
                        b'num_requests_running{engine="0",model_name="llama-8b"} NaN')  # fmt: skip

    async def main():
        async with StubServer(lambda _: Reply(page)) as server:
            source = source_for(server.url)
            batch = await source.poll(1.0)
            await source.aclose()
            return batch

    read = values(asyncio.run(main()))
    assert read["req_running"] != read["req_running"]
    assert read["req_arrived_total"] != read["req_arrived_total"]
    assert read["req_waiting"] == 3


def test_an_engine_that_is_absent_at_the_start_dies_hangs_and_comes_back_is_seen_each_time():
    async def main():
        clock, hang = HandClock(), asyncio.Event()
        async with StubServer(lambda _: Reply(VLLM)) as first:
            port = first.port
        source = EngineSource(
            EngineTarget(f"http://127.0.0.1:{port}", name="e"), clock, lanes=Lanes(timeout_s=0.2), bounds=Bounds()
        )
        poller = Poller(source)
        seen = [(await poller.poll(clock.now())).error]
        async with StubServer(lambda _: Reply(VLLM), port):
            seen.append((await poller.poll(clock.now())).error)
        seen.append((await poller.poll(clock.now())).error)
        async with StubServer(lambda _: Reply(VLLM, wait=hang), port):
            seen.append((await poller.poll(clock.now())).error)
            hang.set()
            seen.append((await poller.poll(clock.now())).error)
        await poller.aclose()
        return seen, poller.counts

    seen, counts = asyncio.run(main())
    assert [bool(error) for error in seen] == [True, False, True, True, False]
    assert seen[0].startswith("refused")
    assert seen[3].startswith("timeout")
    assert (counts.polls, counts.errors) == (5, 3)


def test_a_redirect_on_the_same_server_is_followed_once_and_never_to_another():
    def answer(target):
        if target == "/metrics":
            return Reply(status=307, headers={"Location": "http://evil.example/metrics/"})
        return Reply(VLLM)

    async def main():
        async with StubServer(answer) as server:
            source = source_for(server.url)
            batch = await source.poll(1.0)
            await source.aclose()
            return batch, server.targets

    batch, targets = asyncio.run(main())
    assert batch.error is None
    assert targets == ["/metrics", "/metrics/"]


def test_two_ranks_on_one_page_are_two_subjects():
    second = b"".join(
        line.replace(b'engine="0"', b'engine="1"') + b"\n" for line in VLLM.splitlines() if b'engine="0"' in line
    )

    async def main():
        async with StubServer(lambda _: Reply(VLLM + second)) as server:
            source = source_for(server.url)
            batch = await source.poll(1.0)
            await source.aclose()
            return batch

    batch = asyncio.run(main())
    by_rank = {f.subject.rank: dict(zip(f.names, f.values[0], strict=True)) for f in batch.frames[:2]}
    assert sorted(by_rank) == [0, 1]
    assert by_rank[1]["kv_total_blocks"] == 15039 // 2, "the page's number is summed over ranks"
    assert by_rank[1]["kv_capacity_tokens"] == 240624
    assert "req_rejected_total" not in by_rank[1], "what names no rank goes to the lowest"
    assert {i.subject.rank for i in batch.info} == {0, 1}


@pytest.mark.anyio
async def test_an_absurd_label_shortens_a_name_and_an_unreadable_page_is_said():
    """A 10 kB model name costs nothing but its tail; lines beyond the bound are a failed poll, not a silent blindness."""
    bodies = {
        size: re.sub(rb'model_name="[^"]*"', b'model_name="%s"' % (b"m" * size), VLLM) for size in (10_000, 20_000)
    }
    for size, body in bodies.items():
        async with StubServer(lambda _, body=body: Reply(body)) as server:
            source = source_for(f"http://127.0.0.1:{server.port}")
            batch = await source.poll(0.0)
            await source.aclose()
        if size == 10_000:
            assert not batch.error
            assert "req_running" in values(batch)
            assert batch.dropped > 0
        else:
            assert "no dialect recognises this page" in batch.error
            assert values(batch)["scrape_up"] == 0


ITERATIONS = (
    b'[{"iter":8,"numActiveRequests":2},{"cpuMemUsage":1,"iter":9,"iterLatencyMS":12.5,"maxNumActiveRequests":64,'
    b'"numActiveRequests":3,"numQueuedRequests":5,"kvCacheStats":{"maxNumBlocks":100,"usedNumBlocks":40,'
    b'"tokensPerBlock":32,"cacheHitRate":0.25},"inflightBatchingStats":{"numCtxTokens":512,"numGenRequests":2,'
    b'"numPausedRequests":0}}]'
)


def test_a_list_that_reading_empties_is_read_once_and_the_page_elsewhere_from_then_on():
    """trtllm-serve: `/metrics` is a JSON list of iterations for one reader, the page is `/prometheus/metrics`."""
    page = (Path(__file__).parent.parent / "captures" / "trtllm-1.3.0-synthetic.txt").read_bytes()

    async def main():
        clock = HandClock()
        async with StubServer(lambda t: Reply(ITERATIONS if t.startswith("/metrics") else page)) as server:
            source = source_for(server.url, clock)
            batches = await poll_for(source, clock, 2)
            await source.aclose()
            return batches, server.targets

    batches, targets = asyncio.run(main())
    first = values(batches[0])
    assert (first["req_running"], first["req_waiting"], first["kv_usage_ratio"]) == (3, 5, 0.4)
    assert (first["step_seconds"], first["kv_capacity_tokens"], first["step_prefill_tokens"]) == (0.0125, 3200, 512)
    assert [b.error for b in batches] == [None] * len(batches)
    assert values(batches[-1])["req_running"] == 28
    assert [t for t in targets if t.startswith("/metrics")] == ["/metrics"]


@pytest.mark.parametrize(
    "body", [b"[]", b"[1]", b"[" * 100_000, b'[{"iter":"x","kvCacheStats":[]}]'], ids=["empty", "odd", "deep", "words"]
)
def test_a_list_that_says_nothing_is_refused(body):
    async def main():
        async with StubServer(lambda _: Reply(body)) as server:
            source = source_for(server.url)
            batches = [await source.poll(float(n)) for n in range(2)]
            await source.aclose()
            return batches, server.targets

    batches, targets = asyncio.run(main())
    assert all("no dialect recognises this page" in b.error for b in batches)
    assert targets == ["/metrics", "/prometheus/metrics"]


def test_an_engine_that_answers_between_its_steps_is_waited_for():
    """llama.cpp: a scrape waits for the batch in progress. Patience grows until it is known, and stays for its kind."""
    page = (Path(__file__).parent.parent / "captures" / "llamacpp-11434.txt").read_bytes()

    async def main():
        hang, clock, slow = asyncio.Event(), HandClock(), [True]
        async with StubServer(lambda _: Reply(page, wait=hang if slow else None)) as server:
            source = source_for(server.url, clock, lanes=Lanes(timeout_s=0.05))
            patience = []
            for _ in range(3):
                assert "timeout" in (await source.poll(clock.now())).error
                patience.append(source.patience_s)
            slow.clear()
            hang.set()
            assert (await source.poll(clock.now())).error is None
            await source.aclose()
            return patience, source

    patience, source = asyncio.run(main())
    assert patience == [0.1, 0.2, 0.4]
    assert source.patience_s == 10.0
    assert source.interval_s < 1.0, "its waiting is no cost"


def test_a_start_time_in_a_header_tells_a_restart():
    """llama.cpp puts none on its page; its counters may be higher than before."""
    page = (Path(__file__).parent.parent / "captures" / "llamacpp-11434.txt").read_bytes()
    started = ["13967132504"]

    async def main():
        clock = HandClock()
        headers = {"Process-Start-Time-Unix": ""}
        async with StubServer(
            lambda _: Reply(page, headers=headers | {"Process-Start-Time-Unix": started[0]})
        ) as server:
            source = source_for(server.url, clock)
            before = await poll_for(source, clock, 1)
            started[0] = "14067132504"
            after = await poll_for(source, clock, 1)
            await source.aclose()
            return before, after

    before, after = asyncio.run(main())
    assert [e.what for b in before for e in b.events] == []
    assert [e.what for b in after for e in b.events] == ["restart"]


def test_a_framed_page_without_its_last_line_feed_is_whole():
    async def main():
        async with StubServer(lambda _: Reply(VLLM.rstrip(b"\n"))) as server:
            source = source_for(server.url)
            batch = await source.poll(1.0)
            await source.aclose()
            return batch

    batch = asyncio.run(main())
    assert batch.error is None
    assert values(batch)["req_running"] == 41
