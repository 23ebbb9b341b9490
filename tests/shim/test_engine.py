"""The engine as a whole: mail from other threads, listeners, lives, and memory."""

import gc
import threading
import weakref

from engine_shim.request import Request, Stage
from engine_shim.step import STEP_FIELDS
from tests.shim.playing import Transcript, make_engine, request, run_all


class Ear:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_token(self, request: Request, token_id: int) -> None:
        self.heard.append(f"{request.output_tokens}:{token_id}")

    def on_finish(self, request: Request) -> None:
        self.heard.append(request.finish_reason)


def test_a_listener_hears_each_token_and_then_the_end() -> None:
    engine, ear = make_engine(), Ear()
    engine.add(request("r", [5, 6, 7], 3, listener=ear))
    run_all(engine)
    assert ear.heard == ["1:0", "2:0", "3:0", "length"]


def test_a_request_that_ends_before_its_limit_has_stopped() -> None:
    engine, ear = make_engine(), Ear()
    engine.add(request("r", 10, 2, max_tokens=50, listener=ear))
    run_all(engine)
    assert ear.heard[-1] == "stop"


def test_stages_follow_each_other_without_gaps() -> None:
    """Queue, prefill, decode; each begins when the one before ends, and telemetry hears of each."""
    told = Transcript()
    engine = make_engine(told)
    engine.add(request("r", 100, 5, at=999.0))
    run_all(engine)
    (done,) = told.done
    assert [stage for stage, _, _ in done.stages] == [Stage.QUEUE, Stage.PREFILL, Stage.DECODE]
    assert all(before[2] == after[1] for before, after in zip(done.stages, done.stages[1:], strict=False))
    assert done.stages[1][2] == done.first_token_at
    assert done.stages[-1][2] == done.last_token_at == done.finished_at
    assert [stage for _, stage, _ in told.stages] == [Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.FINISHED]


def test_an_abort_frees_everything_between_two_steps() -> None:
    told = Transcript()
    engine = make_engine(told, max_num_seqs=1)
    engine.add(request("runs", 100, 50))
    engine.add(request("waits", 100, 50))
    engine.step()
    engine.abort("runs")
    engine.abort("waits")
    engine.abort("never heard of")
    assert engine.step() is False
    assert engine.pool.used_blocks == 0
    assert [r.finish_reason for r in told.done] == ["abort", "abort"]
    assert engine.counters.aborted == 2


def test_the_last_record_of_a_busy_spell_shows_an_empty_engine() -> None:
    """A reader that holds the last record must not believe that requests still run; an idle engine says nothing more."""
    told = Transcript()
    engine = make_engine(told)
    engine.add(request("r", 10, 2))
    run_all(engine)
    engine.step()
    engine.step()
    last = dict(zip(STEP_FIELDS, told.records[-1], strict=True))
    assert (last["running"], last["waiting"], last["kv_used_blocks"]) == (0, 0, 0)
    assert last["finished_total"] == 1
    assert len(told.records) == 3


def test_a_second_request_with_the_same_id_is_rejected() -> None:
    told = Transcript()
    engine = make_engine(told)
    engine.add(request("same", 10, 3))
    engine.add(request("same", 20, 3))
    run_all(engine)
    assert [(r.prompt_tokens, r.finish_reason) for r in told.done] == [(20, "rejected"), (10, "length")]


def test_requests_handed_in_by_many_threads_all_finish() -> None:
    """`add` and `abort` need no lock."""
    told = Transcript()
    engine = make_engine(told, kv_pool_tokens=100_000)

    def hand_in(who: int) -> None:
        for i in range(100):
            engine.add(request(f"{who}-{i}", 20, 3))
            if i % 10 == 0:
                engine.abort(f"{who}-{i}")

    threads = [threading.Thread(target=hand_in, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or engine.has_mail():
        engine.step()
    run_all(engine)
    assert len(told.done) == len({r.id for r in told.done}) == 400
    assert engine.counters.finished + engine.counters.aborted == 400


def test_a_crash_loses_what_is_in_flight_and_the_next_life_starts_at_zero() -> None:
    told = Transcript()
    engine = make_engine(told, max_num_seqs=1)
    for name in ("runs", "waits"):
        engine.add(request(name, 50, 50))
    engine.step()
    engine.add(request("just in", 50, 50))
    engine.crash()
    assert not engine.up
    assert {r.id: r.finish_reason for r in told.done} == dict.fromkeys(("runs", "waits", "just in"), "error")
    engine.start()
    assert (engine.up, engine.epoch, engine.counters.arrived, engine.pool.used_blocks) == (True, 2, 0, 0)
    engine.add(request("runs", 50, 5))
    run_all(engine)
    assert engine.counters.finished == 1


def test_a_finished_request_is_forgotten() -> None:
    """Memory does not grow with the number of requests served."""

    class Deaf(Transcript):
        def step_begun(self, record: list[float]) -> None: ...
        def step_ended(self, record: list[float]) -> None: ...
        def stage_changed(self, request: Request, stage: Stage, now: float) -> None: ...
        def finished(self, request: Request) -> None: ...

    class Tracked(Request):
        __slots__ = ("__weakref__",)

    engine = make_engine(Deaf())
    ghosts = []
    for i in range(200):
        visitor = Tracked(f"r{i}", 64, 3, 1000.0, 3, prefix_key=i + 1, prefix_tokens=32)
        ghosts.append(weakref.ref(visitor))
        engine.add(visitor)
        del visitor
        run_all(engine)
    gc.collect()
    assert sum(ghost() is not None for ghost in ghosts) <= 1  # the plan of the last step may keep one


def test_the_request_table_keeps_the_head_of_the_queue_and_the_largest_holders() -> None:
    engine = make_engine(max_num_seqs=4, kv_pool_tokens=50_000)
    for i in range(4):
        engine.add(request(f"runs{i}", 100 * (i + 1), 50))
    for i in range(40):
        engine.add(request(f"waits{i}", 10, 50))
    engine.step()
    rows = [r.id for r in engine.request_rows(18)]
    assert rows == [f"waits{i}" for i in range(16)] + ["runs3", "runs2"]
    assert len(engine.request_rows(100)) == 44
