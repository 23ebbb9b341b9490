"""The journal loses nothing that was recorded: not at kill -9, not on a full disk, not to a torn tail."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpuwatch.config import Config
from gpuwatch.recording.journal import SEGMENT_BYTES, Journal
from gpuwatch.recording.recorder import Recorder
from tests.agent.builders import START, page_batch
from tests.agent.disk import disk_of

ROOT = Path(__file__).parents[2]


def times(journal, **between):
    return [now for now, _ in journal.calls(**between)]


def fill(journal, seconds, start=START):
    for i in range(seconds):
        assert journal.append(start + i, (page_batch(start + i - 0.5, running=float(i)),))


def test_calls_are_read_back_in_order_from_open_and_packed_segments(tmp_path):
    """150 s make two packed segments and an open one; a range reads what lies in it."""
    journal = Journal(tmp_path)
    fill(journal, 150)
    journal.tidy(START + 150)
    assert sorted(p.suffix for _, p in journal.segments()) == [".block", ".block", ".open"]
    assert times(journal) == [START + i for i in range(150)]
    assert times(journal, since=START + 55, until=START + 65) == [START + i for i in range(55, 66)]
    running = [batches[0].frames[0].values[0, 0] for _, batches in journal.calls()]
    assert running == [float(i) for i in range(150)]


def test_packing_makes_segments_smaller(tmp_path):
    """The packed form of the same minute takes less than half."""
    journal = Journal(tmp_path)
    fill(journal, 61)
    before = journal.bytes_on_disk
    journal.tidy(START + 61)
    assert journal.bytes_on_disk < before / 2
    assert journal.counts["calls"] == 61


def test_kill_9_loses_nothing_that_append_returned_from(tmp_path):
    """A process that says each number after recording it is killed hard; every number that it said is there."""
    program = f"""
        import sys
        from gpuwatch.recording.journal import SEGMENT_BYTES, Journal
        from tests.agent.builders import page_batch
        journal = Journal({str(tmp_path)!r})
        for i in range(10**6):
            journal.append(1.764e9 + i, (page_batch(1.764e9 + i),))
            print(i, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().splitlines()]
    process.stdout.close()
    process.wait()
    journal = Journal(tmp_path)
    assert times(journal)[: len(said)] == [1.764e9 + i for i in said]
    journal.tidy(1.764e9)
    assert times(journal)[: len(said)] == [1.764e9 + i for i in said]


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_tail_is_skipped_and_counted(tmp_path, cut):
    """The last call of a cut segment is gone, the others are not, before and after packing."""
    journal = Journal(tmp_path)
    fill(journal, 10)
    journal.close()
    ((_, path),) = journal.segments()
    os.truncate(path, path.stat().st_size - cut)
    again = Journal(tmp_path)
    assert times(again) == [START + i for i in range(9)]
    assert again.counts["torn_tails"] == 1
    again.tidy(START + 10)
    assert times(again) == [START + i for i in range(9)]


def test_damage_in_the_middle_costs_the_rest_of_its_segment_only(tmp_path):
    """A flipped byte is found by the checksum; other segments are read."""
    journal = Journal(tmp_path)
    fill(journal, 130)
    journal.close()
    path = journal.segments()[0][1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    seen = times(Journal(tmp_path))
    assert seen[-69:] == [START + i for i in range(61, 130)]
    assert 20 < len(seen) < 130


def test_a_foreign_file_in_the_folder_is_counted_not_fatal(tmp_path):
    """Text under a segment's name is no segment."""
    (tmp_path / "00001764000000000000.block").write_text("hello")
    journal = Journal(tmp_path)
    fill(journal, 3, START + 100)
    assert times(journal) == [START + 100 + i for i in range(3)]
    assert journal.counts["torn_tails"] == 1


def test_old_and_surplus_segments_go_and_are_counted(tmp_path):
    """Retention by age and by size; the newest data stays."""
    journal = Journal(tmp_path, keep_s=120.0)
    fill(journal, 400)
    journal.tidy(START + 400)
    assert times(journal)[0] >= START + 400 - 120 - 61
    assert journal.counts["expired_segments"] > 0
    size = Journal(tmp_path, keep_bytes=1)
    size.tidy(START + 400)
    assert size.counts["cut_segments"] > 0


def test_a_full_disk_costs_its_own_time_and_recording_resumes(tmp_path):
    """Half a frame is cut off again; what was recorded stays; afterwards recording goes on."""
    journal = Journal(tmp_path)
    fill(journal, 5)
    with disk_of(sum(p.stat().st_size for _, p in journal.segments()) + 100):
        assert not journal.append(START + 5, (page_batch(START + 5, info=()),) * 3)
        assert journal.last_error
    with disk_of(10):
        assert not journal.append(START + 6, (page_batch(START + 6),))
    fill(journal, 5, START + 7)
    assert not journal.last_error
    assert times(journal) == [START + i for i in (0, 1, 2, 3, 4, 7, 8, 9, 10, 11)]
    assert (journal.counts["failed_calls"], journal.counts["torn_tails"]) == (2, 0)


def test_the_gap_that_a_full_disk_left_is_an_event_in_the_next_recorded_call(tmp_path):
    """A replay across the gap is not exact, and says so."""
    recorder = Recorder(tmp_path, Config())
    recorder.record(START, (page_batch(START),))
    with disk_of(10):
        recorder.journal.close()
        recorder.record(START + 1, (page_batch(START + 1),))
        recorder.record(START + 2, (page_batch(START + 2),))
    recorder.record(START + 3, (page_batch(START + 3),))
    recorder.record(START + 4, (page_batch(START + 4),))
    calls = list(recorder.journal.calls())
    events = [(now, e.what, e.detail["calls"]) for now, batches in calls for b in batches for e in b.events]
    assert events == [(START + 3, "journal_cut", "2")]


def test_packing_fails_on_a_full_disk_and_succeeds_later(tmp_path):
    """Segments that could not be packed stay readable and are packed at the next try."""
    journal = Journal(tmp_path)
    fill(journal, 61)
    with disk_of(10):
        journal.tidy(START + 61)
    assert journal.counts["failed_tidies"] == 1
    assert len(times(journal)) == 61
    journal.tidy(START + 62)
    assert [p.suffix for _, p in journal.segments()] == [".block"]
    assert len(times(journal)) == 61


def test_a_flood_makes_small_segments_that_only_the_agent_and_its_group_read(tmp_path):
    """A minute of twenty thousand readings a second: packed in pieces, each in little memory, and read back whole."""
    journal = Journal(tmp_path)
    crowd = tuple(page_batch(START, running=n + 0.5) for n in range(400))
    while journal.counts["bytes"] < 3 * SEGMENT_BYTES:
        assert journal.append(START + journal.counts["calls"] / 1e3, crowd)
    sizes = [path.stat().st_size for _, path in journal.segments()]
    assert len(sizes) >= 3
    assert max(sizes) < 1.5 * SEGMENT_BYTES
    journal.tidy(START + 1)
    assert all(path.stat().st_mode & 0o007 == 0 for _, path in journal.segments())
    assert len(times(journal)) == journal.counts["calls"]
