"""Virtual time: polls on their grid, faults that act, lives that end, and a run that is the same twice."""

import numpy as np
import pytest

from engine_shim.clock import RealClock
from engine_shim.engine.engine import Engine
from engine_shim.faults import FOREVER, Faults, Outage, Slowdown, fault_from_table
from engine_shim.request import Request
from engine_shim.step import STEP_FIELDS
from tests.shim.playing import Transcript, make_engine, played, request, steady


def load(seconds: float, rate_per_s: float = 4.0) -> "dict[str, object]":
    return {"seed": 1, "rate_per_s": rate_per_s, "seconds": seconds, "prompt": (20, 600), "output": (50, 200)}


def test_polls_come_on_their_grid_whatever_the_steps_do() -> None:
    told = played(make_engine(), steady(**load(10.0)), 10.0, poll_s=0.5)
    assert [poll[0] for poll in told.polls] == [1000.0 + 0.5 * (n + 1) for n in range(20)]


def test_an_idle_engine_is_polled_too() -> None:
    told = played(make_engine(), iter([request("late", 100, 5, at=1007.0)]), 9.5)
    assert len(told.polls) == 9
    assert [r.id for r in told.done] == ["late"]
    assert told.columns["begun_at"][0] == 1007.0


def test_a_request_that_arrives_during_a_step_is_taken_in_at_its_end() -> None:
    told = played(make_engine(), iter([request("a", 9000, 5), request("b", 10, 5, at=1000.01)]), 3.0)
    first_end = told.columns["ended_at"][0]
    second = next(r for r in told.done if r.id == "b")
    assert first_end > 1000.1
    assert second.stages[0][1] == first_end


def test_a_long_step_is_open_at_the_polls_that_fall_into_it() -> None:
    engine = make_engine(device="l4", max_step_tokens=20_000, kv_pool_tokens=40_000)
    told = played(engine, iter([request("long", 20_000, 3)]), 8.0)
    first = dict(zip(STEP_FIELDS, told.polls[0][1] or [], strict=True))
    assert (first["ended_at"], first["prefill_tokens"], first["running"]) == (0.0, 20_000, 1)
    assert told.open_readings[0]["tensor_active_ratio"] > 0.4
    assert told.columns["ended_at"][0] - told.columns["begun_at"][0] > 4.0


def test_a_hung_step_does_not_end_and_the_device_shows_it() -> None:
    fault = Slowdown(1003.3, 1008.6, 0.0, "hung_step")
    told = played(make_engine(), steady(**load(12.0)), 12.0, faults=[fault])
    longest = np.argmax(told.columns["ended_at"] - told.columns["begun_at"])
    assert told.columns["begun_at"][longest] <= 1003.3
    assert 1008.6 <= told.columns["ended_at"][longest] < 1009.0
    during = [
        (poll, shown) for poll, shown in zip(told.polls, told.open_readings, strict=True) if 1003.3 < poll[0] < 1008.6
    ]
    assert len(during) == 5
    for poll, shown in during:
        assert poll[1] is not None
        assert shown["gr_engine_active_ratio"] == 1.0
        assert shown["dram_active_ratio"] == 0.0


def test_slow_steps_take_longer_by_their_factor() -> None:
    told = played(make_engine(), iter([request("r", 100, 1500)]), 8.0, faults=[Slowdown(1002.0, 1004.0, 0.25)])
    lasted, begun = told.columns["ended_at"] - told.columns["begun_at"], told.columns["begun_at"]
    normal = np.median(lasted[(begun > 1001) & (begun < 1001.9)])
    slow = np.median(lasted[(begun > 1002.1) & (begun < 1003.9)])
    assert slow / normal == pytest.approx(4.0, rel=0.01)
    assert np.median(lasted[begun > 1004.1]) == pytest.approx(normal, rel=0.01)


def test_a_restart_loses_requests_refuses_new_ones_and_counts_from_zero() -> None:
    told = played(make_engine(), steady(**load(12.0)), 12.0, faults=[Outage(1004.2, 3.0, "restart")])
    assert [(what, at) for what, at, _ in told.events] == [("down", 1004.2), ("up", 1007.2)]
    assert [poll[2] for poll in told.polls] == [True] * 4 + [False] * 3 + [True] * 5
    lost = [r for r in told.done if r.finish_reason == "error"]
    assert any(r.arrived_at < 1004.2 for r in lost)
    assert all(r.finish_reason == "error" for r in told.done if 1004.2 < r.arrived_at < 1007.2)
    steps = told.columns["step"]
    after = told.columns["begun_at"] > 1007
    assert steps[after][0] == 1
    assert told.columns["arrived_total"][after][0] == 1
    assert not np.any((told.columns["ended_at"] > 1004.2) & (told.columns["begun_at"] < 1007.2))


def test_a_crash_without_a_supervisor_is_for_ever() -> None:
    told = played(make_engine(), steady(**load(8.0)), 8.0, faults=[Outage(1003.0, FOREVER)])
    assert [poll[2] for poll in told.polls] == [True] * 3 + [False] * 5  # the poll at that very moment comes first
    assert all(r.finish_reason == "error" for r in told.done if r.arrived_at > 1003.0)


def test_a_closed_loop_hears_of_finishes_and_sends_the_next() -> None:
    """Arrivals may depend on what has finished: here one request is in flight at any time."""

    class OneAtATime(Transcript):
        sent = 0
        next_at = 1000.0

        def peek(self) -> float:
            return self.next_at

        def take(self) -> Request:
            self.sent, at, self.next_at = self.sent + 1, self.next_at, FOREVER
            return request(f"r{self.sent}", 50, 20, at)

        def finished(self, request: Request) -> None:
            super().finished(request)
            self.next_at = request.finished_at + 0.01

    loop = OneAtATime()
    told = played(make_engine(loop), loop, 5.0)  # type: ignore[arg-type]
    assert told.columns["running"].max() == 1
    assert loop.sent == len(told.done) + 1 or loop.sent == len(told.done)
    assert loop.sent > 20


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = (played(make_engine(), steady(**load(6.0)), 6.0) for _ in range(2))
    assert all(np.array_equal(one.columns[name], two.columns[name]) for name in STEP_FIELDS)


def test_real_clocks_are_refused() -> None:
    engine = make_engine()
    real = Engine(engine.settings, 100, engine.runner, RealClock(), Transcript())
    with pytest.raises(ValueError, match="VirtualClock"):
        played(real, iter([]), 1.0)


def test_work_done_before_a_hang_counts_after_it() -> None:
    """A step's end follows from its work and the speeds on its way; overlapping slowdowns multiply."""
    faults = Faults([Slowdown(10.0, 20.0, 0.0), Slowdown(20.0, 30.0, 0.5), Slowdown(25.0, 30.0, 0.5)])
    assert faults.step_end(1.0, 5.0) == 6.0
    assert faults.step_end(9.0, 1.0) == 10.0
    assert faults.step_end(9.0, 2.0) == 22.0
    assert faults.step_end(15.0, 3.0) == 27.0
    assert faults.step_end(40.0, 1.0) == 41.0
    assert Faults([Slowdown(1.0, FOREVER, 0.0)]).step_end(0.5, 1.0) == FOREVER


BAD_FAULTS = {
    "unknown kind": ({"kind": "gremlin", "at_s": 1}, "kind must be one of hung_step"),
    "missing key": ({"kind": "hung_step", "at_s": 1}, "key 'until_s' is missing for a hung_step"),
    "foreign key": ({"kind": "crash", "at_s": 1, "factor": 2}, "unknown key 'factor' for a crash"),
    "backwards": ({"kind": "hung_step", "at_s": 5, "until_s": 5}, r"until_s \(5\) must come after at_s"),
    "negative": ({"kind": "crash", "at_s": -1}, "at_s must be a number of at least 0"),
    "text": ({"kind": "crash", "at_s": "soon"}, "at_s must be a number"),
    "no time at all": ({"kind": "slow_step", "at_s": 1, "until_s": 2, "factor": 0}, "factor must be above 0"),
}


@pytest.mark.parametrize("case", BAD_FAULTS)
def test_bad_faults_name_the_key(case: str) -> None:
    table, message = BAD_FAULTS[case]
    with pytest.raises(ValueError, match=message):
        fault_from_table(table, 1000.0)


def test_faults_are_read_from_tables() -> None:
    assert fault_from_table({"kind": "slow_step", "at_s": 1, "until_s": 3, "factor": 4}, 100.0) == Slowdown(
        101, 103, 0.25
    )
    assert fault_from_table({"kind": "restart", "at_s": 1, "down_s": 8}, 100.0) == Outage(101, 8, "restart")
    assert fault_from_table({"kind": "crash", "at_s": 1}, 100.0) == Outage(101, FOREVER, "crash")
