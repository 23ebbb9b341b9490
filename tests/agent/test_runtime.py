"""Whatever the world does, the agent lives, says so in its metrics and once in its log, and recovers by itself."""

import asyncio
import gzip
import logging
import re
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpuwatch.agent.agent import Agent
from gpuwatch.clock import WallClock
from gpuwatch.config import ConfigError, parse
from gpuwatch.model import Batch, Frame, Info, Subject
from gpuwatch.pipeline import Pipeline
from tests.agent.builders import START
from tests.agent.disk import disk_of
from tests.agent.test_sinks import Receiver, kinds
from tests.sources.stub_server import HandClock, Reply, StubServer

pytestmark = pytest.mark.anyio
PAGE = (Path(__file__).parents[1] / "captures" / "shim-0.1.0.txt").read_bytes()


class Rig:
    """An agent in a hand-driven world. `second` moves the clock and ticks; each tick waits for the polls it began."""

    def __init__(self, tmp_path, url="http://127.0.0.1:1", **settings):
        self.hand = HandClock()
        raw = {"engines": [{"url": url, "name": "shim"}], "state_dir": str(tmp_path / "state"), "host": False}
        self.agent = Agent(parse(raw | settings), WallClock(self.hand.now, lambda: self.hand.t), host="node7")

    async def __aenter__(self):
        await self.agent.start(serve=False)
        await self.agent.warmed()
        return self

    async def __aexit__(self, *_):
        await self.agent.close()

    async def second(self, patience_s=5.0):
        self.hand.t += 1.0
        tick = await self.agent.watch.tick(self.hand.t, patience_s)
        assert tick is not None
        return tick

    def metric(self, name, **labels):
        """The value of a series of the agent's page; None where it is not there."""
        for line in self.agent.desk.metrics().splitlines():
            found = re.fullmatch(rf"gpuwatch_{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")).items():
                return float(found[2])
        return None

    def dropped(self, what):
        return self.metric("agent_dropped_total", what=what)


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def recorded_errors(rig):
    return [b.error for _, batches in rig.agent.watch.recorder.journal.calls() for b in batches if b.error]


async def test_an_engine_that_is_absent_at_the_start_is_seen_when_it_comes(tmp_path, caplog):
    """Down: said once in the log, on the page and in the record. Up: watched within two seconds."""
    async with StubServer(lambda _: Reply(PAGE)) as gone:
        port = gone.port
    async with Rig(tmp_path, f"http://127.0.0.1:{port}") as rig:
        for _ in range(5):
            await rig.second()
        assert rig.metric("scrape_up", engine="shim") == 0
        assert rig.metric("agent_poll_errors_total", source="page:shim") >= 3
        assert rig.metric("req_running", engine="shim") is None
        assert len(warnings(caplog)) == 1
        assert len(recorded_errors(rig)) >= 3
        async with StubServer(lambda _: Reply(PAGE), port=port):
            for _ in range(3):
                await rig.second()
            assert rig.metric("scrape_up", engine="shim") == 1
            assert rig.metric("req_running", engine="shim") == 7
            assert len(warnings(caplog)) == 1


async def test_an_engine_that_dies_and_restarts_with_its_counters_at_zero(tmp_path):
    """The restart is an event and the counters go on from where they were."""
    stamp = b"process_start_time_seconds %d"
    younger = re.sub(rb"(_total(?:\{[^}]*\})?) \S+", rb"\1 0", PAGE).replace(stamp % START, stamp % (START + 5))
    async with StubServer(lambda _: Reply(PAGE)) as server, Rig(tmp_path, server.url) as rig:
        for _ in range(3):
            await rig.second()
        before = rig.metric("generated_tokens_total")
        server.answer = lambda _: Reply(raw=b"")
        for _ in range(3):
            await rig.second()
        assert rig.metric("scrape_up") == 0
        server.answer = lambda _: Reply(younger)
        for _ in range(5):
            await rig.second()
        assert rig.metric("scrape_up") == 1
        assert rig.metric("generated_tokens_total") >= before > 0
        events = [
            e.what
            for _, batches in rig.agent.watch.recorder.journal.calls()
            for b in batches
            for e in b.events
        ]  # fmt: skip
        assert "restart" in events


BAD_PAGES = {
    "500": Reply(b"oops", status=500),
    "half a page": Reply(PAGE, send_bytes=len(PAGE) // 2),
    "not HTTP": Reply(raw=b"\x00\xff" * 500),
    "no engine's page": Reply(b"some_metric 1\n"),
    "nothing": Reply(b""),
    "50 MB of hostile text": Reply(b'x{a="' + b"\\" * (50 * 1024 * 1024) + b'"} 1\n'),
}


@pytest.mark.parametrize("what", BAD_PAGES)
async def test_a_bad_page_is_a_failed_poll_and_the_next_good_one_is_read(tmp_path, caplog, what):
    """Each bad answer is counted, recorded and logged once; seconds are judged all the same."""
    async with StubServer(lambda _: Reply(PAGE)) as server, Rig(tmp_path, server.url) as rig:
        await rig.second()
        server.answer = lambda _: BAD_PAGES[what]
        for _ in range(3):
            await rig.second()
        assert rig.metric("scrape_up") == 0
        assert rig.metric("agent_poll_errors_total", source="page:shim") >= 1
        assert len(recorded_errors(rig)) >= 1
        assert len(warnings(caplog)) == 1
        server.answer = lambda _: Reply(PAGE)
        for _ in range(3):
            await rig.second()
        assert rig.metric("scrape_up") == 1
        assert rig.metric("agent_ticks_total") == 7


async def test_numbers_that_are_none_are_missing_not_zero(tmp_path):
    """A page full of NaN shows no level, and no rule takes it for health."""
    page = re.sub(rb"^([^#\n].*) \S+$", rb"\1 NaN", PAGE, flags=re.MULTILINE)
    async with StubServer(lambda _: Reply(page)) as server, Rig(tmp_path, server.url) as rig:
        for _ in range(3):
            tick = await rig.second()
        assert rig.metric("scrape_up") == 1
        assert rig.metric("req_running") is None
        assert rig.metric("rule_blind", rule="batch_thrashing") == 1
        assert tick.open == ()


async def test_a_slow_engine_delays_nothing_but_its_own_data(tmp_path):
    """While a poll hangs, seconds are judged; its answer is taken when it comes."""
    gate = asyncio.Event()
    async with StubServer(lambda _: Reply(PAGE, wait=gate)) as server, Rig(tmp_path, server.url) as rig:
        for _ in range(5):
            await rig.second(patience_s=0.0)
        assert rig.metric("agent_ticks_total") == 5
        assert rig.metric("req_running") is None
        gate.set()
        await rig.agent.watch.settle()
        await rig.second()
        await rig.second()
        assert rig.metric("req_running") == 7


async def test_spans_that_are_garbage_or_a_flood_are_refused_and_counted(tmp_path):
    """400 for what is no export, 503 when the mailbox is full; memory stays bounded."""
    spans = [
        {
            "traceId": "0" * 32, "spanId": f"{i + 1:016x}", "name": "llm_request",
            "startTimeUnixNano": str(int(START * 1e9)), "endTimeUnixNano": str(int((START + 1) * 1e9)),
        }
        for i in range(600)
    ]  # fmt: skip
    export = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "vllm"}, "spans": spans}]}]}
    body = msgspec.json.encode(export)
    async with Rig(tmp_path, bounds={"spans_waiting": 1000}) as rig:
        take = rig.agent.desk.take_traces
        assert take(b"\xff\x00garbage", "application/x-protobuf", "")[0] == 400
        assert take(b"{]", "application/json", "")[0] == 400
        assert take(b"nope", "application/json", "gzip")[0] == 400
        assert take(gzip.compress(body), "application/json", "gzip") == (200, b"{}", "application/json")
        assert take(body, "application/json", "")[0] == 503
        await rig.second()
        assert (rig.dropped("otlp_exports_refused"), rig.dropped("otlp_exports_full")) == (3, 1)
        assert rig.dropped("spans_items") >= 600
        assert take(body, "application/json", "")[0] == 200
        rows = sum(
            len(s.start) for _, batches in rig.agent.watch.recorder.journal.calls() for b in batches for s in b.spans
        )
        assert rows == 600


@pytest.mark.parametrize(
    "ring",
    [
        b"",
        b"GWRING01",
        b"\x7fELF" + bytes(8000),
        b"GWRING01" + struct.pack("<IIII", 4096, 2**31, 2**31, 64) + bytes(8000),
    ],
    ids=["empty", "cut", "foreign", "lying about its size"],
)
async def test_a_torn_or_foreign_ring_file_is_a_failed_poll(tmp_path, caplog, ring):
    """The page goes on being read; the ring is said to be unreadable, once."""
    path = tmp_path / "shim-0.ring"
    path.write_bytes(ring)
    async with StubServer(lambda _: Reply(PAGE)) as server:
        engine = {"url": server.url, "name": "shim", "ring": str(path)}
        async with Rig(tmp_path, engines=[engine]) as rig:
            for _ in range(3):
                await rig.second()
            assert rig.metric("agent_poll_errors_total", source="steps:shim") >= 1
            assert rig.metric("req_running") == 7
            assert len(warnings(caplog)) == 1


async def test_a_full_disk_is_said_once_and_judging_goes_on(tmp_path, caplog):
    """Journal not ok while it lasts; what was recorded before is there; recording resumes."""
    async with Rig(tmp_path) as rig:
        await rig.second()
        with disk_of(10):
            for _ in range(3):
                await rig.second()
            assert rig.metric("agent_journal_ok") == 0
        assert rig.dropped("calls_not_recorded") == 3
        await rig.second()
        assert rig.metric("agent_journal_ok") == 1
        assert rig.metric("agent_ticks_total") == 5
        assert sum("recording" in w for w in warnings(caplog)) == 1
        calls = [now - START for now, _ in rig.agent.watch.recorder.journal.calls()]
        assert calls == [1.0, 5.0]


async def test_a_disk_full_from_the_start_costs_the_record_not_the_agent(tmp_path, caplog):
    """It starts, judges, says once what is off, and within a minute of there being room everything is on again."""
    with disk_of(10):
        rig = Rig(tmp_path)
        await rig.__aenter__()
        for _ in range(3):
            await rig.second()
        assert (rig.metric("agent_store_ok"), rig.metric("agent_journal_ok")) == (0, 0)
        ready, detail = rig.agent.desk.readiness()
        assert (ready, detail["store"]["ok"], detail["journal"]["ok"]) == (True, False, False)
        assert "incidents.db" in detail["store"]["last_error"]
        assert rig.dropped("store_opens") == 2  # at the start and at the first second, not at each
        assert sum("storing incidents" in w for w in warnings(caplog)) == 1
    for _ in range(60):
        await rig.second()
    assert (rig.metric("agent_store_ok"), rig.metric("agent_journal_ok")) == (1, 1)
    assert rig.agent.desk.incidents(10, False) == ()
    await rig.__aexit__()


async def test_what_no_signal_can_be_is_counted_where_an_operator_looks(tmp_path):
    """A negative queue is no reading: it is left out, and the page says that something was."""
    async with Rig(tmp_path) as rig:
        await rig.second()
        before = rig.dropped("impossible")
        at = np.array([rig.hand.t])
        frame = Frame(Subject(engine="e"), "page", ("req_waiting",), at, np.array([[-5.0]]))
        rig.agent.watch.put(Batch("page:e", "engine", Subject(engine="e"), rig.hand.t, frames=(frame,)))
        await rig.second()
        assert rig.dropped("impossible") == before + 1


async def test_a_fault_of_our_own_costs_seconds_not_the_agent(tmp_path, caplog):
    """An exception in the pipeline is counted and logged once; a pipeline that stays broken is begun anew."""

    class Broken(Pipeline):
        def step(self, now, batches):
            raise RuntimeError("a bug")

    async with Rig(tmp_path) as rig:
        await rig.second()
        rig.agent.watch.pipeline.__class__ = Broken
        for _ in range(3):
            rig.hand.t += 1
            assert await rig.agent.watch.tick(rig.hand.t, 5.0) is None
        assert rig.dropped("seconds_not_judged") == 3
        assert sum(r.levelno == logging.ERROR for r in caplog.records) == 1
        assert rig.agent.watch.recorder.journal.counts["calls"] == 4
        rig.agent.watch.pipeline.__class__ = Pipeline
        await rig.second()
        assert rig.metric("agent_ticks_total") == 2


async def test_a_machine_clock_that_is_stepped_is_an_event_and_no_leap(tmp_path):
    """Seconds go on one by one; the step is recorded."""
    async with Rig(tmp_path) as rig:
        await rig.second()
        monotonic = rig.hand.t
        clock = rig.agent.clock
        clock._unix = lambda: monotonic - 500.0
        clock._monotonic = lambda: monotonic
        await rig.second()
        events = [
            (e.what, e.subject.host)
            for _, batches in rig.agent.watch.recorder.journal.calls()
            for b in batches
            for e in b.events
        ]  # fmt: skip
        assert events == [("clock", "node7")]
        assert clock.now() >= monotonic


async def play(rig, calls):
    for now, batches in calls:
        for batch in batches:
            rig.agent.watch.put(batch)
        rig.hand.t = now
        await rig.agent.watch.tick(now, 5.0)
    await rig.agent.watch.settle()


async def test_a_killed_agent_goes_on_and_tells_nothing_twice(tmp_path, world_calls):
    """The incident is told once, survives the kill, and what happens afterwards is told too."""
    async with Receiver() as receiver:
        settings = {"webhook": {"url": receiver.url}, "engines": []}
        first = Rig(tmp_path, **settings)
        await first.agent.start(serve=False)
        await first.agent.warmed()
        await play(first, world_calls[:75])
        told = kinds(receiver)
        first.agent._lock.close()  # as at kill -9: nothing is closed, only the lock falls
        assert "opened" in {kind for kind, _ in told}
        async with Rig(tmp_path, **settings) as again:
            assert again.agent.watch.pipeline.open() == first.agent.watch.pipeline.open()
            await play(again, world_calls[75:])
            everything = kinds(receiver)
        assert everything[: len(told)] == told
        keys = [head.lower().split("idempotency-key: ")[1].split("\r\n")[0] for head in receiver.heads]
        assert len(keys) == len(set(keys))
        for poller in first.agent.watch.pollers:
            await poller.aclose()


async def test_a_receiver_that_was_down_while_the_agent_died_is_told_by_the_next_run(tmp_path, world_calls):
    """What a sink is owed is in the store, not in memory."""
    async with Receiver() as receiver:
        receiver.status = 503
        settings = {"webhook": {"url": receiver.url}, "engines": []}
        async with Rig(tmp_path, **settings) as rig:
            await play(rig, world_calls[:75])
            found = [i.id for i in rig.agent.watch.store.incidents()]
            assert found
            assert kinds(receiver) == []
        receiver.status = 200
        async with Rig(tmp_path, **settings) as again:
            again.hand.t = world_calls[74][0]
            await again.second()
            await again.agent.watch.settle()
            assert ("opened", found[0]) in kinds(receiver)


async def test_two_agents_do_not_share_a_state_folder(tmp_path):
    """The second one is refused with the key that is wrong."""
    async with Rig(tmp_path):
        with pytest.raises(ConfigError, match=r"state_dir: .*another agent"):
            Rig(tmp_path)


async def test_a_ring_that_says_less_than_the_page_is_no_change_of_arguments(tmp_path):
    """What an engine says of itself is compared within one source; a new version on its page is a change."""
    subject = Subject(engine="shim")

    def said(rig, role, **labels):
        info = (Info(subject, rig.hand.t, labels),)
        rig.agent.watch.put(Batch(f"{role}:shim", role, subject, rig.hand.t, info=info))

    async with Rig(tmp_path) as rig:
        said(rig, "engine", version="1", arg_max_num_seqs="64")
        said(rig, "steps", version="1")
        said(rig, "engine", version="1", arg_max_num_seqs="64")
        assert (await rig.agent.changes.poll(rig.hand.t)).events == ()
        said(rig, "engine", version="2", arg_max_num_seqs="64")
        assert [e.what for e in (await rig.agent.changes.poll(rig.hand.t)).events] == ["version"]


async def test_a_snapshot_of_other_code_costs_warmth_not_the_record(tmp_path, world_calls):
    """Where a restored state cannot be stepped, the recorded calls are replayed from cold."""
    async with Rig(tmp_path, engines=[]) as rig:
        await play(rig, world_calls[:40])
        pipeline = rig.agent.watch.pipeline
        states = pipeline.states
        broken = Pipeline.restore(pipeline.config, pipeline.snapshot())
        for history in broken.memory.values():
            for tier in history.tiers.values():
                del tier.held
        rig.agent.watch.recorder._to_write = (world_calls[20][0], broken.snapshot())
    async with Rig(tmp_path, engines=[]) as again:
        assert again.agent.watch.pipeline.states == states
        assert again.agent.watch.counts["failed_warm_ups"] == 1
