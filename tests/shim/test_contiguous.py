"""The contiguous pool: runs do not overlap, nothing is lost, gaps join, and what does not fit in one piece is refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_shim.engine.step_extras import step_fields
from engine_shim.kv.blocks import OutOfBlocksError
from engine_shim.kv.contiguous import ContiguousPool
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StopReason
from engine_shim.telemetry import EngineTelemetry, LiveRequests
from engine_shim.telemetry.ring import RingWriter
from tests.shim.playing import Transcript, make_engine, played, request, run_all, steady
from tests.shim.telling import info
from tests.shim.test_ring_writer import Reader
from tests.shim.test_scheduler_state import SchedulerMachine

CONTIGUOUS = {"kv_layout": "contiguous", "prefix_cache": False}
contiguous_tables = st.fixed_dictionaries(
    {
        "kv_pool_tokens": st.integers(9, 24).map(lambda blocks: 16 * blocks),
        "max_num_seqs": st.integers(1, 8),
        "max_step_tokens": st.integers(8, 200),
        "chunked_prefill": st.booleans(),
        "watermark_ratio": st.sampled_from([0.0, 0.05, 0.3]),
        "admission": st.sampled_from(["fifo", "bypass"]),
        "reserve": st.sampled_from(["none", "prompt", "max_tokens"]),
    }
)


class ContiguousPoolMachine(RuleBasedStateMachine):
    """Owners place runs, grow and leave; `line` is the pool as a plain list of who has each block."""

    @initialize(total=st.integers(1, 24))
    def create(self, total: int) -> None:
        self.pool = ContiguousPool(total, 16)
        self.line: list[int | None] = [None] * total
        self.held: dict[int, list[int]] = {}
        self.owners = 0

    def gaps(self) -> list[int]:
        """Lengths of the stretches that nobody has, in order."""
        text = "".join("." if owner is None else "x" for owner in self.line)
        return [len(gap) for gap in text.split("x") if gap]

    def first_fit(self, length: int) -> int | None:
        run = [None] * length
        return next((at for at in range(len(self.line)) if self.line[at : at + length] == run), None)

    @rule(count=st.integers(1, 8), promised=st.integers(0, 12))
    def place(self, count: int, promised: int) -> None:
        """A new run goes to the first gap that holds it, or nowhere."""
        length, before = max(count, promised), list(self.line)
        start = self.first_fit(length)
        if start is None:
            assert not self.pool.room_for(length, [], self.pool.total_blocks)
            with pytest.raises(OutOfBlocksError):
                self.pool.take(count, (), promised)
            assert self.line == before
            return
        assert self.pool.room_for(length, [], self.pool.total_blocks)
        self.owners += 1
        self.held[self.owners] = self.pool.take(count, (), promised)
        assert self.held[self.owners] == list(range(start, start + count))
        self.line[start : start + length] = [self.owners] * length

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 8))
    def grow(self, data: st.DataObject, count: int) -> None:
        """More blocks come from the run's own rest and then from the gap behind it."""
        owner = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[owner]
        end = held[-1] + 1 + count
        blocks = list(range(held[-1] + 1, end))
        free = end <= len(self.line) and all(self.line[at] in (None, owner) for at in blocks)
        rest = self.line.count(owner) - len(held)
        assert self.pool.room_for(max(count - rest, 0), held, self.pool.total_blocks) == free
        if free:
            held += self.pool.take(count, held)
            assert held[-count:] == blocks
            self.line[blocks[0] : end] = [owner] * count
        else:
            with pytest.raises(OutOfBlocksError):
                self.pool.take(count, held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release(self.held.pop(owner))
        self.line = [None if at == owner else at for at in self.line]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_a_part(self, data: st.DataObject) -> None:
        """A run comes back whole or not at all."""
        held = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        with pytest.raises(ValueError, match=r"are released|no run begins"):
            self.pool.release(held[1:] or [len(self.line)])

    @invariant()
    def nothing_is_lost(self) -> None:
        held = sum(len(blocks) for blocks in self.held.values())
        assert self.pool.used_blocks == held
        assert self.pool.free_blocks == len(self.line) - held
        assert self.pool.held_slots_tokens == 16 * held

    @invariant()
    def gaps_are_joined(self) -> None:
        """The longest gap is that of the plain list: freed neighbours have become one gap."""
        gaps = self.gaps()
        assert self.pool.largest_free_blocks == max(gaps, default=0)
        assert sum(room for _, room in self.pool._gaps) == sum(gaps)
        assert all(start + room < after for (start, room), (after, _) in pairwise(self.pool._gaps))

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for blocks in self.held.values():
                self.pool.release(blocks)
            assert self.pool.largest_free_blocks == self.pool.free_blocks == self.pool.total_blocks


TestContiguousPool = ContiguousPoolMachine.TestCase
TestContiguousPool.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class ContiguousSchedulerMachine(SchedulerMachine):
    """Everything that holds of the scheduler holds on a contiguous pool, and each request's blocks are one run."""

    @initialize(table=contiguous_tables)
    def create(self, table: dict[str, Any]) -> None:
        super().create(table | CONTIGUOUS)

    @invariant()
    def blocks_are_one_run(self) -> None:
        for running in self.engine.scheduler.running:
            assert running.blocks == list(range(running.blocks[0], running.blocks[0] + len(running.blocks)))

    @invariant()
    def what_was_promised_lies_behind_what_is_held(self) -> None:
        promised = self.engine.scheduler.admission.reserved_blocks
        gaps = sum(room for _, room in self.engine.pool._gaps)
        assert gaps == self.engine.pool.free_blocks - promised


TestContiguousScheduler = ContiguousSchedulerMachine.TestCase
TestContiguousScheduler.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_free_blocks_in_pieces_hold_a_request_back() -> None:
    """Six of eight blocks are free, but no four in one piece: the head waits, and would not wait on pages."""
    for layout, waits in ((CONTIGUOUS, True), ({"prefix_cache": False}, False)):
        told = Transcript()
        engine = make_engine(told, kv_pool_tokens=128, watermark_ratio=0.0, reserve="max_tokens", **layout)
        for name, prompt, output in (("a", 46, 2), ("b", 14, 18), ("c", 30, 18)):
            engine.add(request(name, prompt, output))
        engine.step()
        engine.step()  # a is done, c will be gone: b has blocks 3 and 4
        engine.abort("c")
        engine.add(request("d", 50, 10))
        engine.step()
        last = dict(zip(step_fields(engine.settings), told.records[-1], strict=True))
        assert last["waiting"] == float(waits), layout
        if waits:
            assert last["stop_reason"] == StopReason.NO_BLOCKS
            assert (last["kv_largest_free_blocks"], last["head_need_blocks"], last["waiting_fit"]) == (3, 4, 0)
            assert last["kv_total_blocks"] - last["kv_used_blocks"] - last["kv_reserved_blocks"] == 6


def test_a_request_whose_neighbour_stands_in_the_way_pushes_out_the_later_one() -> None:
    """Growth on demand: the earlier request goes on, its later neighbour is preempted and finishes afterwards."""
    told = Transcript()
    engine = make_engine(told, kv_pool_tokens=160, watermark_ratio=0.0, reserve="prompt", **CONTIGUOUS)
    first, second, third = (request(name, 16, output) for name, output in (("a", 60), ("b", 8), ("c", 8)))
    for one in (first, second, third):
        engine.add(one)
    run_all(engine)
    assert [r.finish_reason for r in (first, second, third)] == ["length"] * 3
    assert first.preemptions == 0
    assert second.preemptions > 0


def test_a_run_at_the_pools_end_starts_again_elsewhere() -> None:
    """The last run cannot grow past the pool: its owner gives up its KV and is placed anew, where there is room."""
    engine = make_engine(kv_pool_tokens=96, watermark_ratio=0.0, reserve="prompt", **CONTIGUOUS)
    early, late = request("a", 64, 10), request("b", 16, 50)
    engine.add(early)
    engine.add(late)
    run_all(engine)
    assert late.preemptions > 0
    assert late.finish_reason == early.finish_reason == "length"


def test_reserving_max_tokens_never_preempts() -> None:
    """A run that was sized for all that may come is never in the way of itself."""
    engine = make_engine(kv_pool_tokens=4_000, reserve="max_tokens", **CONTIGUOUS)
    told = played(engine, steady(3, 12.0, 10.0, (20, 400), (20, 200)), 20.0)
    assert told.columns["waiting"].max() > 3
    assert told.columns["preempted_total"][-1] == 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), reserve=st.sampled_from(["none", "prompt", "max_tokens"]))
def test_fused_and_plain_are_equal(seed: int, reserve: str) -> None:
    """Stretches are not fused on this pool; the records say the same with and without the attempt."""
    load = {"seed": seed, "rate_per_s": 10.0, "seconds": 4.0, "prompt": (1, 400), "output": (1, 200)}
    table = {"kv_pool_tokens": 2_992, "reserve": reserve, **CONTIGUOUS}
    one, other = (played(make_engine(**table), steady(**load), 4.0, fuse=fuse) for fuse in (True, False))
    assert list(one.columns) == list(step_fields(EngineSettings.from_table({"model": "7b", **table})))
    for name, values in other.columns.items():
        assert values.tolist() == one.columns[name].tolist(), name


def test_the_ring_has_the_longest_run_beside_the_usual_fields(tmp_path: Path) -> None:
    """Readers find fields by name: the extra one is in the header's list and in every slot."""
    engine = make_engine(kv_pool_tokens=160, watermark_ratio=0.0, reserve="prompt", **CONTIGUOUS)
    facts = info(kv_total_blocks=10, step_fields=step_fields(engine.settings))
    live = LiveRequests(b"s")
    ring = RingWriter(facts, live, tmp_path, slots=8, rows=4, unix_ns=1, monotonic_ns=1)
    engine.telemetry = EngineTelemetry(facts, live, engine.clock.now, ring=ring)
    engine.add(request("a", 40, 9))
    engine.step()
    engine.step()
    read = Reader(ring.path.read_bytes())
    assert [f["name"] for f in read.facts["step"]][-1] == "kv_largest_free_blocks"
    assert [f["unit"] for f in read.facts["step"]][-1] == "blocks"
    fields, ended = read.slot(2) or ({}, False)
    assert ended
    assert (fields["kv_used_blocks"], fields["kv_largest_free_blocks"]) == (3, 7)
