"""Prefixes are stripped in any order, and the times in them become one axis that never runs backwards."""

from datetime import UTC, datetime

import pytest

from gpuwatch.sources.logs.lines.prefixes import strip
from gpuwatch.sources.logs.lines.stamps import Stamp
from gpuwatch.sources.logs.lines.timeline import Timeline
from tests.logs.told import kinds, notices, read, rows, v1


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


PREFIXES = {
    "2025-10-15T00:02:38.756689123Z payload": ("container", "2025-10-15T00:02:38.756689"),
    "2025-10-15T02:02:38+02:00 payload": ("container", "2025-10-15T00:02:38"),
    "2025-10-15T00:02:38.5Z stdout F payload": ("container", "2025-10-15T00:02:38.5"),
    "2025-10-15T00:02:38.5Z stderr F INFO 10-14 17:02:38 [a.py:1] payload": ("container", "2025-10-15T00:02:38.5"),
    "[2025-06-12 11:41:56 TP0] payload": ("own", "2025-06-12T11:41:56"),
    "[2025-06-12 11:41:56.250 DP6 TP6 EP6] payload": ("own", "2025-06-12T11:41:56.25"),
    "[08/04/2026-19:08:13] [TRT-LLM] [I] [_torch][RANK 0] payload": ("own", "2026-08-04T19:08:13"),
    "1717000000.123456 node7 bash[7]: payload": ("journal", "2024-05-29T16:26:40.123456"),
    "[Wed Apr 22 15:35:31 2026] payload": ("own", "2026-04-22T15:35:31"),
    'time="2021-05-12T17:31:12Z" level=error msg="payload': ("own", "2021-05-12T17:31:12"),
    "2025-10-15 00:02:38,123 - payload": ("own", "2025-10-15T00:02:38.123"),
    # without a year: the leap year in which they wait for one
    "INFO 10-14 17:02:38 [loggers.py:123] payload": ("own", "2000-10-14T17:02:38"),
    "(EngineCore_DP3 pid=77) WARNING 10-14 17:02:38.5 llm_engine.py:921] payload": ("own", "2000-10-14T17:02:38.5"),
    "I0510 07:57:30.770724 21661 model.cc:840] payload": ("own", "2000-05-10T07:57:30.770724"),
    "Apr  2 15:35:31 node7 llama-server[7]: payload": ("journal", "2000-04-02T15:35:31"),
    "[  123.500000] payload": ("boot", "1970-01-01T00:02:03.5"),
    "\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 10-14 17:02:38 [a.py:1] payload": ("own", "2000-10-14T17:02:38"),
    "vllm-1  | INFO 10-14 17:02:38 [a.py:1] payload": ("own", "2000-10-14T17:02:38"),
}


@pytest.mark.parametrize("text", PREFIXES)
def test_a_prefix_is_stripped_and_its_time_kept(text):
    line = strip(text)
    clock, at = PREFIXES[text]
    assert line.text.endswith("payload")
    assert len(line.text) <= len("- payload")
    assert line.stamp is not None
    assert (line.stamp.clock, line.stamp.unix_s) == (clock, pytest.approx(unix(at), abs=1e-6))


def test_tags_name_ranks_and_processes():
    assert [
        strip(t).rank
        for t in ("(EngineCore_DP3 pid=7) x", "[2025-06-12 11:41:56 DP6 TP5 EP4] x", "(Worker_TP1 pid=7) x")
    ] == [
        3,
        6,
        None,
    ]
    assert strip("(Worker_TP1 pid=7) x").tp_rank == 1
    assert strip("(RayWorkerVllm pid=123, ip=10.0.0.7) x").pid == 123


@pytest.mark.parametrize(
    "text", ["INFO 13-14 17:02:38 x", "[2025-06-32 11:41:56] x", "INFO 10-14 27:02:38 x", "0000-00-00T00:00:00Z x"]
)
def test_what_only_looks_like_a_time_is_none(text):
    assert strip(text).stamp is None


def test_a_date_without_a_year_gets_the_nearest_one():
    assert read(v1(0, 1, 1, 1, 0, 1), start_at=unix("2026-01-03T00:00:00")).first_at == unix("2025-07-28T01:00:00")
    assert read(v1(0, 1, 1, 1, 0, 1), start_at=unix("2027-05-03T00:00:00")).first_at == unix("2027-07-28T01:00:00")
    nobody_knows = read(v1(0, 1, 1, 1, 0, 1), start_at=None)
    assert nobody_knows.notes == ["the log's dates have no year: they are read as the year 2000, in UTC"]


def test_a_year_ends():
    line = "INFO {} 23:59:{:02d} [a.py:1] x"
    found = read(line.format("12-31", 50), "INFO 01-01 00:00:10 [a.py:1] x", start_at=unix("2025-12-31T00:00:00"))
    assert found.last_at - found.first_at == 20.0


def test_the_containers_time_counts_where_the_logger_is_hours_off():
    found = read(
        "2025-10-15T00:02:38Z " + v1(0, 1.0, 1.0, 1, 0, 1.0), "2025-10-15T00:02:48Z " + v1(10, 1.0, 1.0, 1, 0, 1.0)
    )
    assert (found.first_at, found.last_at) == (unix("2025-10-15T00:02:38"), unix("2025-10-15T00:02:48"))


def test_another_clock_is_laid_beside_the_first():
    clock = Timeline()
    assert clock.place(Stamp("own", 5000.0)) == 5000.0
    assert clock.place(Stamp("container", 90_000.0)) == 5000.0
    assert clock.place(Stamp("container", 90_010.0)) == 5010.0
    assert clock.place(Stamp("own", 5011.0)) == 5011.0


def test_writers_that_are_a_little_out_of_order_do_not_turn_time_back():
    clock = Timeline()
    assert [clock.place(Stamp("own", t)) for t in (100.0, 105.0, 103.0, 106.0)] == [100.0, 105.0, 105.0, 106.0]
    assert clock.counts["late"] == 1


def test_a_jump_back_is_a_second_run_behind_the_first():
    found = read(v1(600, 0, 9, 1, 0, 1.0), v1(610, 0, 9, 1, 0, 1.0), v1(0, 0, 9, 2, 0, 1.0), v1(10, 0, 9, 2, 0, 1.0))
    assert "restarted" in kinds(found)
    times = [row["at"] for row in rows(found)]
    assert times == sorted(times)
    assert rows(found)[-1]["at"] - rows(found)[0]["at"] == 21.0


def test_a_new_pid_of_the_same_process_is_a_restart():
    again = v1(90, 0, 9, 1, 0, 1.0).replace("pid=1)", "pid=8)")
    found = read(v1(0, 0, 9, 1, 0, 1.0), again, v1(100, 0, 9, 1, 0, 1.0).replace("pid=1)", "pid=8)"))
    assert notices(found) == [{"kind": "restarted"}]
    what = [event.what for _, batches in found.calls for b in batches for event in b.events]
    assert what == ["notice", "restart"]


def test_several_api_servers_in_one_log_are_no_restarts():
    lines = [
        v1(10 * k, 0, 9, 1, 0, 1.0).replace("APIServer pid=1", f"APIServer_{k % 2} pid={7 + k % 2}") for k in range(40)
    ]
    assert kinds(read(*lines)) == []
    share = [v1(10 * k, 0, 9, 1, 0, 1.0).replace("pid=1)", f"pid={7 + k % 2})") for k in range(40)]
    assert len(kinds(read(*share))) == 1


def test_a_time_from_another_century_is_garbage():
    clock = Timeline()
    assert [clock.place(Stamp("own", t)) for t in (100.0, 9e9, 101.0)] == [100.0, 100.0, 101.0]
    assert clock.counts["garbage"] == 1


def test_lines_without_a_time_take_the_one_before():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
    found = read(v1(0, 0, 9, 1, 0, 1.0), oom)
    assert found.calls[-1][0] == found.first_at
    assert kinds(found) == ["out_of_memory"]


def test_a_first_line_without_a_time_does_not_move_the_dates_that_follow():
    """Python warnings precede vLLM's first line; the file's date, taken for its beginning, is that of its end."""
    ended_at = unix("2025-07-28T05:00:00")
    found = read("Triton is installed, but does not include a CPU backend.", v1(0, 1, 1, 1, 0, 1), start_at=ended_at)
    assert found.last_at == unix("2025-07-28T01:00:00")
    assert found.first_at == found.last_at, "what was guessed for the first line is no time of the log"
