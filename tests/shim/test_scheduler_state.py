"""The scheduler under random loads, settings and policies.

Nobody is lost, nothing leaks, order and budget are kept, and nobody waits beyond the bound that its policy gives.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_shim.engine.scheduler import Scheduler
from engine_shim.engine.step_extras import step_fields
from engine_shim.request import Request, Stage
from tests.shim.playing import Transcript, make_engine, request, run_all

mechanics = st.fixed_dictionaries(
    {
        "kv_pool_tokens": st.integers(9, 24).map(lambda blocks: 16 * blocks),  # the largest request needs 9
        "max_num_seqs": st.integers(1, 8),
        "max_step_tokens": st.integers(8, 200),
        "chunked_prefill": st.booleans(),
        "watermark_ratio": st.sampled_from([0.0, 0.05, 0.3]),
        "admission": st.sampled_from(["fifo", "bypass"]),
        "reserve": st.sampled_from(["none", "prompt", "max_tokens"]),
        "prefix_cache": st.booleans(),
        "prefix_evict": st.sampled_from(["lru", "fifo"]),
        "prefix_cache_ratio": st.sampled_from([0.0, 0.2, 1.0]),
        "max_long_prefills": st.sampled_from([0, 0, 1, 2]),
        "long_prefill_tokens": st.just(30),
        "batching": st.sampled_from(["continuous", "continuous", "static"]),
    }
)
orders = st.sampled_from(
    [
        {"scheduling": "fifo"},
        {"scheduling": "fifo"},
        {"scheduling": "fifo_wait_limit", "wait_limit_s": 0.03, "admission": "bypass"},
        {"scheduling": "priority", "ageing_s": 0.05},
        {"scheduling": "priority", "ageing_s": 1000.0},
        {"scheduling": "shortest_prompt"},
        {"scheduling": "shortest_prompt", "wait_limit_s": 0.03},
    ]
)
budgets = st.sampled_from([{}, {}, {"prefill_step_share": 0.3}, {"prefill_step_seconds": 0.01}])


def _together(table: dict[str, Any], order: dict[str, Any], budget: dict[str, Any]) -> dict[str, Any]:
    return table | order | (budget if table["chunked_prefill"] else {})


settings_tables = st.builds(_together, mechanics, orders, budgets)


@dataclass(frozen=True)
class Before:
    """What a step found."""

    now: float
    waiting: list[Request]  # in order
    since: dict[Request, float]
    running: list[Request]
    preempted: int

    @classmethod
    def of(cls, scheduler: Scheduler, now: float) -> "Before":
        """Now, before the next step."""
        waiting = list(scheduler.waiting)
        since = {r: r.stage_since for r in waiting}
        return cls(now, waiting, since, list(scheduler.running), scheduler.counters.preempted)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, are aborted and finish, at random between steps."""

    @initialize(table=settings_tables)
    def create(self, table: dict[str, Any]) -> None:
        self.told = Transcript()
        self.engine = make_engine(self.told, **table)
        self.added: list[Request] = []
        self.batch_closed = False  # of static batching: somebody of it has decoded

    @rule(
        prompt=st.integers(1, 60),
        output=st.integers(1, 64),
        extra=st.integers(0, 20),
        prefix=st.integers(0, 3),
        priority=st.integers(0, 1),
    )
    def arrive(self, prompt: int, output: int, extra: int, prefix: int, priority: int) -> None:
        name = f"r{len(self.added)}"
        shared = {"prefix_key": prefix, "prefix_tokens": min(prompt, 16 * prefix), "priority": priority}
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
            before = Before.of(self.engine.scheduler, self.engine.clock.now())
            told = len(self.told.stages)
            self.engine.step()
            if not self.told.records:
                continue
            record = dict(zip(step_fields(self.engine.settings), self.told.records[-1], strict=True))
            admitted = {name for name, stage, _ in self.told.stages[told:] if stage is Stage.PREFILL}
            self.check_budget(record)
            self.check_preempted(before, admitted)
            self.check_order(before, [r for r in before.waiting if r.id in admitted])
            self.check_static_batch(before, record, admitted)

    def check_budget(self, record: dict[str, float]) -> None:
        """What a step may compute."""
        limits = self.engine.settings
        if limits.chunked_prefill:
            assert record["prefill_tokens"] + record["decode_tokens"] <= limits.max_step_tokens
        else:
            assert not (record["prefill_tokens"] and record["decode_tokens"])
            one_prompt = record["prefill_tokens"] == record["longest_prefill_tokens"]
            assert one_prompt or record["prefill_tokens"] <= limits.max_step_tokens
        if limits.prefill_step_share < 1 and record["decode_tokens"]:
            assert record["prefill_tokens"] <= max(limits.prefill_step_share * limits.max_step_tokens, 1)

    def check_preempted(self, before: Before, admitted: set[str]) -> None:
        """The preempted let nobody in before them, unless a policy has them displaced."""
        scheduler = self.engine.scheduler
        preempted = scheduler.counters.preempted - before.preempted
        if not preempted:
            return
        queue = list(scheduler.waiting)
        if self.engine.settings.scheduling != "priority":
            assert all(r.stage is Stage.REQUEUE for r in queue[:preempted])
            assert not admitted
            return
        went = [r for r in before.running if r.stage is Stage.REQUEUE]
        lower = [r for r in scheduler.running if r.priority and r.id not in admitted]
        rank = scheduler.order.rank
        assert max(map(rank, lower), default=0.0) <= min(map(rank, went), default=0.0)

    def check_order(self, before: Before, entered: list[Request]) -> None:
        """Nobody came in before one whose turn it was by the policy, and who could have come in by itself."""
        limits, scheduler = self.engine.settings, self.engine.scheduler
        queue = set(scheduler.waiting)
        left = [r for r in before.waiting if r in queue]
        if limits.max_long_prefills:  # a long prompt that is held back lets others pass
            left = [r for r in left if r.total_tokens < limits.long_prefill_tokens]
        starving = [r for r in left if limits.wait_limit_s and before.now - before.since[r] >= limits.wait_limit_s]
        place = {r: index for index, r in enumerate(before.waiting)}
        for r in entered:
            if limits.scheduling == "priority" and limits.admission == "fifo":
                assert all(scheduler.order.rank(r) <= scheduler.order.rank(other) for other in left)
            if limits.scheduling == "fifo_wait_limit":
                assert all(place[r] < place[other] for other in starving)
            if limits.scheduling == "shortest_prompt":
                earlier = [other for other in starving if other.stage is Stage.QUEUE]
                assert all(r.preemptions or before.since[r] <= before.since[other] for other in earlier)

    def check_static_batch(self, before: Before, record: dict[str, float], admitted: set[str]) -> None:
        """Nobody joins a batch of which somebody has decoded."""
        if self.engine.settings.batching != "static":
            return
        if all(r.finish_reason == "abort" for r in before.running):
            self.batch_closed = False
        assert not (self.batch_closed and admitted)
        assert not (record["prefill_tokens"] and record["decode_tokens"])
        self.batch_closed = self.batch_closed or record["decode_tokens"] > 0

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
        limits = self.engine.settings
        assert len(scheduler.running) <= limits.max_num_seqs
        long = [r for r in scheduler.prefilling if r.total_tokens >= limits.long_prefill_tokens]
        assert len(long) <= limits.max_long_prefills or not limits.max_long_prefills

    @invariant()
    def waiting_fit_is_what_it_says(self) -> None:
        scheduler = self.engine.scheduler
        room = scheduler.admission.available_blocks - scheduler.admission.watermark_blocks(len(scheduler.running))
        room = self.engine.pool.largest_run(room)
        assert scheduler.waiting_fit() == sum(scheduler.admission.promise_blocks(r) <= room for r in scheduler.waiting)

    @invariant()
    def fifo_admits_in_order_of_arrival(self) -> None:
        limits = self.engine.settings
        if (limits.admission, limits.scheduling, limits.max_long_prefills) == ("fifo", "fifo", 0):
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
