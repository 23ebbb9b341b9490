"""The step ring's reader: complete steps once and in order, open steps, the request table, and every kind of damage."""

import asyncio
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from engine_shim.request import Request, Stage
from engine_shim.step import STEP_FIELDS
from engine_shim.telemetry.info import EngineInfo
from engine_shim.telemetry.live import LiveRequests
from engine_shim.telemetry.ring import RingWriter
from gpuwatch.catalog import STEP_SIGNALS
from gpuwatch.model import Subject
from gpuwatch.sources.ring.ring_file import RingError, RingFile
from gpuwatch.sources.ring.steps import StepsSource
from tests.sources.ring_writer import STEP, TinyRing
from tests.sources.stub_server import HandClock

SUBJECT = Subject(engine="e")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "e-0.ring"


def source_for(path, t=1010.0, **settings):
    return StepsSource(path, SUBJECT, HandClock(t), **settings)


def poll(source, now=None):
    return asyncio.run(source.poll(source._clock.t if now is None else now))


def column(batch, name):
    return [v for f in batch.frames for v in f.values[:, f.names.index(name)].tolist()]


def test_steps_arrive_once_in_order_under_the_catalogues_names(path):
    ring, source = TinyRing(path), source_for(path)
    for _ in range(3):
        ring.step()
    first = poll(source)
    ring.step()
    second = poll(source)
    assert column(first, "steps_total") == [1, 2, 3]
    assert column(second, "steps_total") == [4]
    assert poll(source).frames == ()
    assert set(first.frames[0].names) >= set(STEP_SIGNALS.values())
    assert first.frames[0].at.tolist() == [1001.5, 1002.5, 1003.5]
    assert column(first, "step_seconds") == [0.5] * 3
    assert column(first, "kv_usage_ratio") == [0.4] * 3
    assert column(first, "kv_cached_ratio") == [0.1] * 3
    assert column(first, "kv_reserved_unused_ratio") == [0.05] * 3
    assert column(first, "kv_internal_fragmentation_ratio") == [0.1] * 3
    assert first.info[0].labels["model"] == "tiny"
    assert first.info[0].labels["kv_capacity_tokens"] == "1600"


def test_a_step_that_runs_is_open_and_then_complete(path):
    ring, source = TinyRing(path), source_for(path)
    ring.begin(step=1, begun_at=1009.0, prefill_tokens=4096, running=2, waiting=7)
    running = poll(source).open_steps[0]
    assert (running.at, running.begun_at, running.prefill_tokens, running.waiting) == (1010.0, 1009.0, 4096, 7)
    assert poll(source).open_steps, "it runs until it ends, however often it is looked at"
    ring.end(step=1, begun_at=1009.0, ended_at=1009.9)
    batch = poll(source)
    assert batch.open_steps == ()
    assert column(batch, "steps_total") == [1]


def test_a_lapped_reader_counts_what_it_lost_and_goes_on_with_the_oldest(path):
    ring, source = TinyRing(path, slots=8), source_for(path, t=1050.0)
    ring.step()
    poll(source)
    for _ in range(20):
        ring.step()
    batch = poll(source)
    assert column(batch, "steps_total") == list(range(14, 22))
    assert batch.dropped == 12


def test_the_first_look_takes_the_last_minute_and_loses_nothing_by_it(path):
    ring, source = TinyRing(path, slots=256), source_for(path, t=1100.6)
    for _ in range(100):
        ring.step()
    batch = poll(source)
    assert column(batch, "steps_total") == list(range(41, 101))
    assert batch.dropped == 0


def test_a_torn_slot_is_tried_again_and_then_counted_and_order_is_kept(path):
    ring, source = TinyRing(path), source_for(path)
    ring.step()
    ring.step()
    ring.tear(2)
    ring.step()
    first = poll(source)
    assert (column(first, "steps_total"), first.dropped) == ([1], 0)
    second = poll(source)
    assert (column(second, "steps_total"), second.dropped) == ([3], 1)


def test_a_slot_that_was_only_being_written_is_read_at_the_second_try(path):
    ring, source = TinyRing(path), source_for(path)
    ring.step()
    ring.begin(step=2, begun_at=1.0)
    at = 4096 + ring.slot_bytes
    ring.put(at, struct.pack("<Q", 4))  # the end is being written: first number ahead of the second
    first = poll(source)
    assert (column(first, "steps_total"), first.open_steps) == ([1], ())
    ring.end(step=2, begun_at=1009.0, ended_at=1009.5)
    second = poll(source)
    assert (column(second, "steps_total"), second.dropped) == ([2], 0)


def test_the_request_table_is_read_when_it_is_new_or_a_second_old(path):
    ring, source = TinyRing(path), source_for(path)
    assert poll(source).requests != ()
    ring.table([(7, 1000.0, 1, 512, 64, 0, 0, 2), (9, 1001.0, 3, 128, 64, 5, 9, 0)], 2)
    table = poll(source).requests[0]
    assert table.request.tolist() == [7, 9]
    assert (table.arrived_at.tolist(), table.stage.tolist()) == ([1000.0, 1001.0], [1, 3])
    assert (table.max_tokens.tolist(), table.preemptions.tolist()) == ([64, 64], [2, 0])
    assert poll(source).requests == ()
    assert poll(source, 1011.5).requests != ()
    ring.put(72, struct.pack("<Q", 3))
    assert poll(source, 1013.0).requests == (), "odd: it is being written"


def test_a_new_instance_is_a_restart_and_the_old_ones_last_steps_are_not_lost(path):
    old, source = TinyRing(path), source_for(path)
    old.step()
    poll(source)
    old.step()
    fresh = TinyRing(path, instance=b"j" * 16)
    fresh.step(ended_at=1009.0, generated_tokens_total=1)
    batch = poll(source)
    assert [(e.what, e.detail["epoch"]) for e in batch.events] == [("restart", "2")]
    assert [f.at.tolist() for f in batch.frames] == [[1002.5], [1009.0]]
    assert len(batch.info) == 1
    assert poll(source).events == ()


def test_an_instance_that_lived_between_two_polls_is_read_from_prev(path):
    old, source = TinyRing(path), source_for(path)
    old.step()
    poll(source)
    TinyRing(path, instance=b"j" * 16).step(ended_at=1005.0)
    TinyRing(path, instance=b"k" * 16).step(ended_at=1008.0)
    batch = poll(source)
    assert [f.at.tolist() for f in batch.frames] == [[1005.0], [1008.0]]
    assert len(batch.events) == 1


def test_an_idle_or_dead_engine_is_no_error(path):
    ring, source = TinyRing(path), source_for(path)
    ring.step()
    ring.close()
    poll(source)
    path.unlink()
    for _ in range(3):
        batch = poll(source)
        assert (batch.error, batch.frames, batch.events) == (None, (), ())


def test_a_ring_is_live_while_it_moves_or_a_step_runs(path):
    ring, source = TinyRing(path), source_for(path)
    assert not source.is_live()
    ring.step()
    poll(source)
    assert source.is_live()
    source._clock.t += 11
    assert not source.is_live()
    ring.begin(begun_at=1020.0)
    poll(source)
    assert source.is_live()


def test_an_optional_ring_may_come_later(path):
    source = source_for(path, optional=True)
    assert poll(source).error is None
    TinyRing(path).step()
    assert column(poll(source), "steps_total") == [1]


def test_unknown_fields_are_ignored_and_missing_ones_are_missing(path):
    fields = ("ended_at", "from_the_future", "begun_at", "running")
    ring, source = TinyRing(path, fields=fields), source_for(path)
    ring.step(ended_at=1009.0, running=5)
    assert set(poll(source).frames[0].names) == {"req_running", "step_seconds"}


def damage(path, at, raw):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)


@pytest.mark.parametrize(
    ("at", "raw", "reason"),
    [
        (0, b"NOTARING", "not a step ring"),
        (12, struct.pack("<I", 7), "do not fill"),
        (16, struct.pack("<I", 15), "impossible sizes"),
        (16, struct.pack("<I", 1 << 19), "truncated"),
        (20, struct.pack("<I", 1), "do not fill"),
        (80, struct.pack("<I", 100_000), "impossible length"),
        (256, b"{not json", "unreadable description"),
        (256, b'{"step": "none"' + b" " * 50, "unreadable description"),
        (64, struct.pack("<Q", (1 << 64) - 1), "impossible number"),
    ],
    ids=["magic", "slot", "count", "size", "row", "length", "json", "shape", "newest"],
)
def test_a_foreign_or_damaged_file_is_refused_with_its_name_and_the_reason(path, at, raw, reason):
    TinyRing(path).step()
    damage(path, at, raw)
    with pytest.raises(RingError, match=reason) as caught:
        poll(source_for(path))
    assert str(path) in str(caught.value)


def test_missing_short_and_irregular_files_are_refused(path, tmp_path):
    with pytest.raises(RingError, match="No such file"):
        RingFile(str(path))
    path.write_bytes(b"GWRING01")
    with pytest.raises(RingError, match="truncated"):
        RingFile(str(path))
    with pytest.raises(RingError, match=r"not a regular file|directory"):
        RingFile(str(tmp_path))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(RingError, match="not a regular file"):
        RingFile(str(fifo))


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error_and_not_a_crash(path):
    ring, source = TinyRing(path), source_for(path)
    ring.step()
    poll(source)
    ring.step()
    os.truncate(path, 4200)
    with pytest.raises(RingError, match="truncated"):
        poll(source)
    TinyRing(path, instance=b"j" * 16).step(ended_at=1009.0)
    assert column(poll(source), "steps_total") == [1], "the next instance is read"


def test_garbage_in_the_place_of_the_ring_is_reported_until_a_ring_is_back(path):
    ring, source = TinyRing(path), source_for(path)
    ring.step()
    poll(source)
    path.unlink()
    path.write_bytes(os.urandom(5000))
    for _ in range(2):
        with pytest.raises(RingError):
            poll(source)
    path.unlink()
    TinyRing(path, instance=b"j" * 16).step(ended_at=1009.0)
    assert column(poll(source), "steps_total") == [1]


def test_descriptors_are_not_leaked_by_files_that_are_refused(path):
    TinyRing(path).close()
    damage(path, 0, b"NOTARING")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(RingError):
            RingFile(str(path))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_bundled_engines_own_ring_is_read(tmp_path):
    """Writer and reader were made from the page alone; here they meet."""
    info = EngineInfo("shim", "tiny", "0.1.0", 512, 16, 64, 4096, 999.0, arguments={"api_key": "sk-12345678"})
    live = LiveRequests(b"salt")
    writer = RingWriter(info, live, tmp_path, slots=64, rows=8, unix_ns=1, monotonic_ns=1)
    source = StepsSource(writer.path, Subject(engine="shim"), HandClock(1010.0))
    request = Request("r1", 40, 20, 1000.0, 20)
    request.enter(Stage.QUEUE, 1000.0)
    live.stage_changed(request, Stage.QUEUE)
    record = [float(i) for i in range(len(STEP_FIELDS))]
    record[1:3] = [1001.0, 0.0]
    writer.step_begun(record)
    batch = poll(source)
    assert batch.open_steps[0].begun_at == 1001.0
    assert batch.requests[0].prompt_tokens.tolist() == [40]
    assert batch.requests[0].request.tolist() == [live.request_hash(request)]
    assert batch.info[0].labels["kv_capacity_tokens"] == str(512 * 16)
    assert batch.info[0].labels["api_key"] == "<hidden>"
    record[2] = 1002.0
    writer.step_ended(record)
    frame = poll(source).frames[0]
    assert dict(zip(frame.names, frame.values[0], strict=True))["req_running"] == record[STEP_FIELDS.index("running")]
    assert STEP == STEP_FIELDS, "the test's own writer follows the same page"
    assert np.all(frame.at == 1002.0)
    writer.close()
