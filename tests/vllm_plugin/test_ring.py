"""The plugin's own ring writer against the agent's reader: what was written is read, once, in order, and nothing else."""

import math
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from gpuwatch_vllm.ring import Fields, Ring, RingTakenError, Rows, ring_path
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sources.ring.ring_file import RingFile
from gpuwatch.sources.ring.rings import file_stem

FIELDS = Fields(("step", "ended_at", "running"), ("id", "finished_at", "reason"))


def ring_at(path, **changes):
    chosen = {"fields": FIELDS, "info": {"model": "tiny"}, "rows": Rows(8, 4), "unix_ns": 7, "monotonic_ns": 5}
    return Ring(path, "e", 0, **{**chosen, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "e-0.ring"


numbers = st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(st.tuples(numbers, numbers, numbers), max_size=30)
calls = st.lists(st.tuples(st.sampled_from(["step", "finished", "look"]), rows), max_size=12)


@settings(deadline=None)
@given(calls)
def test_every_row_is_read_once_in_order_and_lapped_ones_are_counted(tmp_path_factory, calls):
    """Whatever is written, and whenever it is looked at: rows read + rows lapped = rows written."""
    path = tmp_path_factory.mktemp("ring") / "e-0.ring"
    ring, written = ring_at(path), {"step": [], "finished": []}
    reader = RingFile(str(path))
    read, last = {"step": [], "finished": []}, {"step": 0, "finished": 0}

    def look():
        for table, got in (("step", reader.completed(last["step"])), ("finished", reader.finished(last["finished"]))):
            names = FIELDS.step if table == "step" else FIELDS.finished
            read[table] += [None] * got.lapped + list(zip(*(got.columns[n].tolist() for n in names), strict=True))
            last[table] = got.last
            assert got.torn is None

    for table, values in calls:
        if table == "look":
            look()
            continue
        for row in values:
            getattr(ring, table).append(row)
        written[table] += values
    look()
    for table, wrote_rows in written.items():
        for wrote, got in zip(wrote_rows, read[table], strict=True):
            assert got is None or np.array_equal(wrote, got, equal_nan=True)
    reader.close()
    ring.close()


def test_the_header_says_what_the_agent_needs(path):
    ring = ring_at(path)
    read = RingFile(str(path))
    assert (read.engine, read.rank, read.pid, read.info) == ("e", 0, os.getpid(), {"model": "tiny"})
    assert (read.slots, read.shows_requests, read.created_unix_ns) == (8, False, 7)
    assert read.running() is None
    assert not path.with_name("e-0.ring.tmp").exists()
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, "an agent of another user reads it"
    ring.close()


def test_facts_that_do_not_fit_are_left_out_and_the_first_ones_stay(path):
    ring = ring_at(path, info={"max_num_seqs": 8} | {f"arg_{i}": "x" * 100 for i in range(60)})
    info = RingFile(str(path)).info
    assert info["max_num_seqs"] == 8
    assert 1 < len(info) < 61
    ring.close()


def test_what_a_dead_engine_left_is_kept_as_prev(path):
    old = ring_at(path)
    old.step.append([1.0, 2.0, 3.0])
    old.close()
    ring_at(path).close()
    prev = RingFile(f"{path}.prev").completed(0)
    assert prev.columns["running"].tolist() == [3.0]
    assert RingFile(str(path)).completed(0).last == 0


def test_a_second_engine_of_the_name_is_refused_while_the_first_lives(path):
    """It would take the file away from under the first one, and an agent would see a restart that never was."""
    first = ring_at(path)
    with pytest.raises(RingTakenError, match="living process"):
        ring_at(path)
    first.step.append([1.0, 2.0, 3.0])
    assert RingFile(str(path)).completed(0).last == 1
    first.close()
    ring_at(path).close()


def die_with_a_ring(path):
    ring = ring_at(path)
    ring.step.append([1.0, 2.0, 3.0])
    os._exit(9)


def test_the_kernel_forgets_the_claim_of_a_process_that_was_killed(path):
    process = multiprocessing.get_context("fork").Process(target=die_with_a_ring, args=(path,))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    assert RingFile(str(path)).completed(0).last == 1, "the black box outlives it"
    ring_at(path).close()


def test_a_link_under_the_temporary_name_is_not_followed(path, tmp_path):
    """The directory may be one that everybody can write to."""
    target = tmp_path / "precious"
    target.write_text("kept")
    path.parent.mkdir()
    path.with_name("e-0.ring.tmp").symlink_to(target)
    ring_at(path).close()
    assert target.read_text() == "kept"


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match="file"):
        ring_at(blocked / "e-0.ring")


def test_a_truncated_file_harms_the_reader_alone(path):
    """Another process may cut the file: the writer goes on (it maps nothing), and the reader reports a broken ring."""
    ring = ring_at(path)
    ring.step.append([1.0, 2.0, 3.0])
    os.truncate(path, 10)
    ring.step.append([2.0, 3.0, 4.0])
    ring.close()


@pytest.mark.parametrize("engine", ["vllm", "127.0.0.1:8000", "../../etc/passwd", "a b", "", "ß" * 200, "..."])
def test_writer_and_agent_make_the_same_file_name_of_an_engine(engine):
    path = ring_path("/rings", engine, 3)
    assert path == Path("/rings", f"{file_stem(engine)}-3.ring")
    assert path.parent == Path("/rings")


def write_steps(path, count):
    ring = ring_at(path)
    for n in range(count):
        ring.step.append([n, n + 0.5, 2 * n])
        ring.finished.append([n, n + 0.25, 3 * n])
    ring.close()


def test_a_reader_beside_a_writer_at_full_speed_sees_whole_rows_only(path):
    """Rows are read while they are overwritten: none is a mix of two."""
    count = 20_000
    process = multiprocessing.get_context("fork").Process(target=write_steps, args=(path, count))
    process.start()
    while not path.exists():
        process.join(0.001)
    reader, seen, last, last_finished = RingFile(str(path)), 0, 0, 0
    while last < count or last_finished < count:
        steps, ended = reader.completed(last), reader.finished(last_finished)
        step = steps.columns["step"]
        assert (steps.columns["ended_at"] == step + 0.5).all()
        assert (steps.columns["running"] == 2 * step).all()
        assert (ended.columns["reason"] == 3 * ended.columns["id"]).all()
        assert (np.diff(step) == 1).all()
        seen += len(step)
        last = steps.torn or steps.last
        last_finished = ended.torn or ended.last
    process.join(30)
    assert process.exitcode == 0
    assert seen > 0
    assert math.isfinite(seen)
