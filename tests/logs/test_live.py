"""A log is followed while it is written: across rotation, in pieces, from a file or a pipe, and wired into the agent."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.agent.agent import build_sources
from gpuwatch.clock import WallClock
from gpuwatch.config import parse
from gpuwatch.model import Batch, Subject
from gpuwatch.pipeline import Pipeline
from gpuwatch.sources.logs import LogSource
from gpuwatch.sources.logs.follow import BYTES_A_LOOK, LINE_BYTES
from gpuwatch.sources.poll import Poller
from tests.logs.told import v1

NOW = 1_800_000_000.0


class Followed:
    """A file that a test writes and a source that follows it, a second a step."""

    def __init__(self, path: Path, before: str = "") -> None:
        self.path = path
        path.write_text(before)
        os.utime(path, (NOW, NOW))
        self.source = LogSource(str(path), Subject(engine="e"))
        self.now = NOW
        self.step()

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def step(self, text: str = "", seconds: float = 1.0) -> Batch:
        if text:
            self.write(text)
        self.now += seconds
        return asyncio.run(self.source.poll(self.now))


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path / "vllm.log")
    yield made
    asyncio.run(made.source.aclose())


def told(batch: Batch, name: str = "req_running") -> list[float]:
    return [row[f.names.index(name)] for f in batch.frames if name in f.names for row in f.values.tolist()]


def test_new_lines_are_told_as_of_now(followed):
    batch = followed.step(v1(0, 10.0, 100.0, 7, 3, 50.0) + "\n")
    assert told(batch) == [7.0]
    assert batch.frames[0].at.tolist() == [followed.now]
    assert (batch.role, batch.source, batch.subject, batch.error) == ("log", "log:e", Subject(engine="e"), None)


def test_an_unfinished_line_waits_for_its_end(followed):
    line = v1(0, 10.0, 100.0, 7, 3, 50.0)
    assert told(followed.step(line[:90])) == []
    assert told(followed.step(line[90:] + "\n")) == [7.0]


def test_a_value_stands_between_two_lines_and_its_counter_rises_evenly(followed):
    followed.step(v1(0, 10.0, 100.0, 7, 3, 50.0) + "\n")
    tokens = [value for _ in range(10) for value in told(followed.step(), "generated_tokens_total")]
    assert tokens == pytest.approx([100.0 * k for k in range(1, 10)])


def test_rotation_by_rename_loses_nothing(followed):
    followed.write(v1(0, 1.0, 1.0, 1, 0, 1.0) + "\n")
    followed.path.rename(followed.path.with_suffix(".1"))
    followed.path.write_text(v1(10, 1.0, 1.0, 2, 0, 1.0) + "\n")
    assert told(followed.step()) == [1.0, 2.0]
    assert told(followed.step(v1(20, 1.0, 1.0, 3, 0, 1.0) + "\n"))[-1] == 3.0
    assert followed.source.cut["rotations"] == 1


def test_a_name_without_a_file_for_a_while_is_no_error(followed):
    followed.path.rename(followed.path.with_suffix(".1"))
    assert followed.step().error is None
    followed.path.write_text(v1(10, 1.0, 1.0, 2, 0, 1.0) + "\n")
    assert told(followed.step()) == [2.0]


@pytest.mark.parametrize("again", [1, 40])
def test_rotation_by_copy_and_truncation_begins_anew(followed, again):
    """Also where the file has grown beyond its old size by the next look."""
    followed.step(v1(0, 1.0, 1.0, 1, 0, 1.0) + "\nhalf a line")
    shutil.copy(followed.path, followed.path.with_suffix(".1"))
    os.truncate(followed.path, 0)
    batch = followed.step("".join(v1(10 + k, 1.0, 1.0, 2, 0, 1.0) + "\n" for k in range(again)))
    assert told(batch)[-again:] == [2.0] * again
    assert followed.source.cut["truncations"] == 1


def test_a_writer_that_is_too_fast_is_caught_up_with(followed):
    followed.write(("x" * 1000 + "\n") * 3000)
    batch = followed.step(v1(0, 1.0, 1.0, 5, 0, 1.0) + "\n")
    assert told(batch) == [5.0]
    assert followed.source.cut["skipped_bytes"] == followed.path.stat().st_size - BYTES_A_LOOK
    assert batch.dropped == 1


def test_a_line_without_an_end_does_not_grow_in_memory(followed):
    for _ in range(5):
        followed.step("x" * LINE_BYTES)
    assert followed.source.cut["long_lines"] >= 1
    assert told(followed.step("\n" + v1(0, 1.0, 1.0, 5, 0, 1.0) + "\n")) == [5.0]


def test_what_was_there_before_tells_the_start_and_the_last_numbers(tmp_path):
    start = "(EngineCore pid=2) INFO 07-28 00:50:00 [kv_cache_utils.py:1] GPU KV cache size: 178,880 tokens\n"
    noise = "".join(f'INFO:     10.0.0.1:{k} - "GET /health HTTP/1.1" 200 OK\n' for k in range(20_000))
    path = tmp_path / "vllm.log"
    path.write_text(start + noise + v1(0, 0.0, 50.0, 7, 3, 50.0) + "\n" + v1(10, 0.0, 0.0, 7, 3, 50.0) + "\n")
    os.utime(path, (NOW - 300, NOW - 300))
    source = LogSource(str(path), Subject(engine="e"))
    batch = asyncio.run(source.poll(NOW))
    assert batch.info[0].labels == {"kv_capacity_tokens": "178880"}
    assert told(asyncio.run(source.poll(NOW + 1.5))) == [7.0, 7.0], "it said that nothing moves, and nothing since"
    assert not batch.events
    asyncio.run(source.aclose())


def test_an_engine_that_hangs_is_named_from_its_log_alone(tmp_path):
    """Ten moving lines, one that stands still, then silence, as vLLM prints it."""
    live, pipeline = Followed(tmp_path / "vllm.log"), Pipeline()
    opened: list[tuple[str, float]] = []
    for second in range(1, 200):
        text = ""
        if second % 10 == 0 and second <= 110:
            moving = 100.0 if second <= 100 else 0.0
            text = v1(second, moving, moving, 8, 2, 50.0) + "\n"
        batch = live.step(text)
        tick = pipeline.step(live.now, [batch])
        opened += [(t.incident.rule, live.now - NOW) for t in tick.transitions if t.kind == "opened"]
    assert [rule for rule, _ in opened] == ["engine_hang"]
    assert 110 <= opened[0][1] <= 125
    assert {i.confidence for i in pipeline.open()} == {0.95}
    asyncio.run(live.source.aclose())


def test_a_file_that_is_not_there_is_a_failed_poll_until_it_comes(tmp_path):
    path = tmp_path / "later.log"
    poller = Poller(LogSource(str(path), Subject(engine="e")))
    failed = asyncio.run(poller.poll(NOW))
    assert failed.error is not None
    assert "No such file" in failed.error
    path.write_text("")
    assert asyncio.run(poller.poll(NOW + 1)).error is None
    asyncio.run(poller.aclose())


def test_a_pipe_is_followed_to_its_end():
    reader, writer = os.pipe()
    source = LogSource("-", Subject(engine="e"), reader)
    os.write(writer, (v1(0, 0.0, 9.0, 4, 0, 5.0) + "\n").encode())
    assert told(asyncio.run(source.poll(NOW))) == [4.0]
    assert asyncio.run(source.poll(NOW + 1)).error is None, "nothing there is no error"
    os.write(writer, v1(10, 0.0, 9.0, 5, 0, 5.0).encode())
    os.close(writer)
    assert told(asyncio.run(source.poll(NOW + 2)))[-1] == 5.0
    assert told(asyncio.run(source.poll(NOW + 5))) == [], "what an ended engine said last does not stand"
    os.close(reader)


def test_quick_steps_are_readings_and_no_notices(followed):
    step = (
        "[TRT-LLM] [I] iter = {}, global_rank = 0, rank = 0, host_step_time = {}ms, states = {{'num_ctx_tokens': 0}}\n"
    )
    batch = followed.step(step.format(1, 12.5) + step.format(2, 13.5))
    assert told(batch, "step_seconds") == [0.0125, 0.0135]
    assert batch.events == ()
    (event,) = followed.step(step.format(3, 12.5) + step.format(4, 215_000)).events
    assert (event.detail["kind"], event.detail["seconds"]) == ("step", "215")


def test_a_restart_is_a_change_only_where_no_page_tells_it(tmp_path):
    for alone, what in ((True, ["notice", "restart"]), (False, ["notice"])):
        reader, writer = os.pipe()
        source = LogSource("-", Subject(engine="e"), reader, alone)
        line = v1(0, 1.0, 1.0, 1, 0, 1.0)
        os.write(writer, f"{line}\n{line.replace('pid=1)', 'pid=2)')}\n".encode())
        assert [event.what for event in asyncio.run(source.poll(NOW)).events] == what
        os.close(writer)
        os.close(reader)


def test_a_kubernetes_log_file_is_read_as_it_is(followed):
    line = v1(0, 1.0, 1.0, 9, 0, 1.0)
    pieces = (
        f"2026-07-28T01:00:00.1Z stdout P {line[:80]}\n",
        f"2026-07-28T01:00:00.1Z stdout F {line[80:]}\n",
    )
    assert told(followed.step(pieces[0])) == []
    assert told(followed.step(pieces[1])) == [9.0]


def test_the_agent_follows_what_the_configuration_names(tmp_path):
    log = tmp_path / "vllm-7.log"
    config = parse({"engines": [{"log": str(log)}, {"url": "http://10.0.0.1:8000", "log": "-"}], "host": False})
    assert [engine.name for engine in config.engines] == ["vllm-7", "10.0.0.1:8000"]
    names = [source.name for source in build_sources(config, WallClock(), "h")]
    assert "log:vllm-7" in names
    assert {"page:10.0.0.1:8000", "log:10.0.0.1:8000"} <= set(names)
    assert "page:vllm-7" not in names
