"""The scheduler under random loads and settings: nobody is lost, nothing leaks, order and budget are kept."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_shim.request import Request, Stage
from engine_shim.step import STEP_FIELDS
from tests.shim.playing import Transcript, make_engine, request, run_all

settings_tables = st.fixed_dictionaries(
    {
        "kv_pool_tokens": st.integers(9, 24).map(lambda blocks: 16 * blocks),  # the largest request needs 9
        "max_num_seqs": st.integers(1, 8),
        "max_step_tokens": st.integers(8, 200),
        "chunked_prefill": st.booleans(),
        "watermark_ratio": st.sampled_from([0.0, 0.05, 0.3]),
        "admission": st.sampled_from(["fifo", "bypass"]),
        "reserve": st.sampled_from(["none", "prompt", "max_tokens"]),
        "prefix_cache": st.booleans(),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, are aborted and finish, at random between steps."""

    @initialize(table=settings_tables)
    def create(self, table: dict[str, Any]) -> None:
        self.told = Transcript()
        self.engine = make_engine(self.told, **table)
        self.added: list[Request] = []
        self.first_admissions = 0

    @rule(prompt=st.integers(1, 60), output=st.integers(1, 64), extra=st.integers(0, 20), prefix=st.integers(0, 3))
    def arrive(self, prompt: int, output: int, extra: int, prefix: int) -> None:
        name = f"r{len(self.added)}"
        shared = {"prefix_key": prefix, "prefix_tokens": min(prompt, 16 * prefix)}
        new = request(name, prompt, output, self.engine.clock.now(), max_tokens=output + extra, **shared)
        self.engine.add(new)
        self.added.append(new)

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=60), output=st.integers(1, 40))
    def arrive_with_ids(self, text: list[int], output: int) -> None:
        new = request(f"r{len(self.added)}", text, output, self.engine.clock.now())
        self.engine.add(new)
        self.added.append(new)

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(self.added)).id)

    @rule(steps=st.integers(1, 25))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            before = list(self.engine.scheduler.waiting)
            preempted_before = self.engine.counters.preempted
            self.engine.step()
            self.check_step(before, self.engine.counters.preempted - preempted_before)

    def check_step(self, queue_before: list[Request], preempted: int) -> None:
        """Budget, and that preempted requests stand at the front and let nobody in before them."""
        if not self.told.records:
            return
        record = dict(zip(STEP_FIELDS, self.told.records[-1], strict=True))
        limits = self.engine.settings
        if limits.chunked_prefill:
            assert record["prefill_tokens"] + record["decode_tokens"] <= limits.max_step_tokens
        else:
            assert not (record["prefill_tokens"] and record["decode_tokens"])
            one_prompt = record["prefill_tokens"] == record["longest_prefill_tokens"]
            assert one_prompt or record["prefill_tokens"] <= limits.max_step_tokens
        if preempted:
            queue = list(self.engine.scheduler.waiting)
            assert all(r.stage is Stage.REQUEUE for r in queue[:preempted])
            survivors = [r for r in queue_before if r in queue]
            assert [r for r in queue[preempted:] if r in survivors] == survivors  # nobody was admitted

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        scheduler, pool = self.engine.scheduler, self.engine.pool
        held = [block for r in scheduler.running for block in r.blocks]
        assert pool.used_blocks == len(set(held))
        assert pool.held_slots_tokens == 16 * len(held)
        assert all(len(r.blocks) == pool.blocks_for(r.computed_tokens) for r in scheduler.running)
        assert all(not r.blocks and not r.computed_tokens for r in scheduler.waiting)
        outstanding = sum(max(0, r.reserved_blocks - len(r.blocks)) for r in scheduler.running)
        assert scheduler.admission.reserved_blocks == outstanding <= pool.free_blocks

    @invariant()
    def sums_hold(self) -> None:
        scheduler = self.engine.scheduler
        assert scheduler.written_tokens == sum(r.computed_tokens for r in scheduler.running)
        assert scheduler.context_tokens == sum(r.computed_tokens for r in scheduler.decoding)
        assert all(r.computed_tokens == r.total_tokens - 1 for r in scheduler.decoding)
        assert sorted(r.id for r in scheduler.running) == sorted(
            r.id for r in scheduler.decoding + scheduler.prefilling
        )
        assert len(scheduler.running) <= self.engine.settings.max_num_seqs

    @invariant()
    def waiting_fit_is_what_it_says(self) -> None:
        scheduler = self.engine.scheduler
        room = scheduler.admission.available_blocks - scheduler.admission.watermark_blocks(len(scheduler.running))
        assert scheduler.waiting_fit() == sum(scheduler.admission.promise_blocks(r) <= room for r in scheduler.waiting)

    @invariant()
    def fifo_admits_in_order_of_arrival(self) -> None:
        if self.engine.settings.admission == "fifo":
            first: dict[str, int] = {}
            for name, stage, _ in self.told.stages:
                if stage is Stage.PREFILL:
                    first.setdefault(name, int(name[1:]))
            assert list(first.values()) == sorted(first.values())

    @invariant()
    def nobody_is_lost(self) -> None:
        if not self.engine.has_mail():
            inside = [r.id for r in self.engine.scheduler.requests()]
            assert sorted(inside + [r.id for r in self.told.done]) == sorted(r.id for r in self.added)

    def teardown(self) -> None:
        """When load stops, everything finishes, and the pool is whole again."""
        if not hasattr(self, "engine"):
            return
        run_all(self.engine)
        counts = self.engine.counters
        assert self.engine.pool.used_blocks == 0
        assert self.engine.scheduler.admission.reserved_blocks == 0
        assert counts.arrived == counts.finished + counts.aborted == len(self.told.done) == len(self.added)
        for r in self.told.done:
            assert r.finish_reason == "abort" or r.output_tokens == r.stop_after
            assert not r.prompt or len(r.output) == r.output_tokens
        finished = [r for r in self.told.done if r.finish_reason != "abort"]
        if len(finished) == len(self.added):
            assert counts.generated_tokens == sum(r.output_tokens for r in finished)
            assert counts.prompt_tokens == sum(r.prompt_tokens for r in finished)
            assert counts.recomputed_tokens == sum(r.recomputed_tokens for r in finished)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
