"""Recorded demand: requests come when they came and as long as they were; a file that cannot be played is named by its line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.demand.arrivals import Demand
from engine_shim.demand.scenario import Scenario, ScenarioError, load_scenario
from engine_shim.demand.schedule import schedule
from engine_shim.demand.trace import FOLDERS, Replay, Trace, TraceError, find_trace, read_trace

TEXT = """
about = "A test."
duration_s = 60
[engine]
model = "tiny"
kv_pool_tokens = 16000
[[load]]
name = "chat"
arrivals = "trace"
trace = "mine.csv"
[expect]
class = "none"
"""
ROWS = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9000000,100,10
2023-11-16 18:17:05.4000000,7,3
2023-11-16 18:17:23.9000000,40,1""".replace("\n", "\r\n")


def load(folder: Path, text: str = TEXT, rows: str = ROWS) -> Scenario:
    (folder / "mine.csv").write_text(rows, newline="")
    (folder / "test.toml").write_text(text)
    return load_scenario(folder / "test.toml", "h100")


def sent(scenario: Scenario, seed: int = 1) -> list[tuple[float, int, int]]:
    demand = Demand(scenario.streams, [0.0] * len(scenario.streams), pool_tokens=16_000, seed=seed, start=0.0)
    found = []
    while demand.peek() < float("inf"):
        request = demand.take()
        found.append((round(request.arrived_at, 6), request.prompt_tokens, request.stop_after))
    return found


def test_requests_come_as_they_were_recorded_whatever_the_seed(tmp_path: Path):
    scenario = load(tmp_path)
    assert sent(scenario, 1) == sent(scenario, 2) == [(0.0, 100, 10), (1.5, 7, 3), (20.0, 40, 1)]


def test_a_part_of_a_trace_twice_as_fast(tmp_path: Path):
    scenario = load(tmp_path, TEXT.replace("[expect]", "from_s = 30\ntrace_from_s = 1\nspeed = 2\n[expect]"))
    assert sent(scenario) == [(30.25, 7, 3), (39.5, 40, 1)]


def test_recorded_times_with_other_lengths(tmp_path: Path):
    scenario = load(tmp_path, TEXT.replace("[expect]", "prompt_tokens = { uniform = [500, 600] }\n[expect]"))
    found = sent(scenario)
    assert [(at, output) for at, _, output in found] == [(0.0, 10), (1.5, 3), (20.0, 1)]
    assert all(500 <= prompt <= 600 for _, prompt, _ in found)


def test_recorded_lengths_at_other_times(tmp_path: Path):
    lengths = '{ mix = [{ share = 0.5, trace = "mine.csv" }, { share = 0.5, fixed = 9000 }] }'
    poisson = TEXT.replace('arrivals = "trace"\ntrace = "mine.csv"', f"rate_per_s = 9\nprompt_tokens = {lengths}")
    found = sent_at_9(load(tmp_path, poisson.replace("[expect]", 'output_tokens = { trace = "mine.csv" }\n[expect]')))
    assert {prompt for _, prompt, _ in found} == {7, 40, 100, 9000}
    assert {output for _, _, output in found} == {1, 3, 10}


def sent_at_9(scenario: Scenario) -> list[tuple[float, int, int]]:
    demand = Demand(scenario.streams, [9.0], pool_tokens=16_000, seed=3, start=0.0)
    return [(r.arrived_at, r.prompt_tokens, r.stop_after) for r in (demand.take() for _ in range(300))]


@given(
    gaps=st.lists(st.floats(0, 100), min_size=1, max_size=1500),
    from_ratio=st.floats(0, 1),
    kept=st.floats(0.05, 1),
)
def test_what_a_cure_keeps_are_requests_of_the_trace(gaps: list[float], from_ratio: float, kept: float):
    """Each with its own lengths; with nothing dropped all come, from the first to the last."""
    from tests.shim.test_arrivals import stream

    at_s = np.cumsum(gaps) - gaps[0]
    numbers = np.arange(1, len(gaps) + 1)
    replay = Replay(Trace(at_s, numbers, numbers + 1), from_s=from_ratio * at_s[-1])
    made = stream(arrivals="trace", replay=replay, until_s=1e9, kept=kept)
    demand = Demand([made], [0.0], pool_tokens=1000, seed=5, start=0.0)
    found = []
    while demand.peek() < float("inf"):
        found.append(demand.take())
    for request in found:
        assert request.arrived_at == at_s[request.prompt_tokens - 1] - replay.from_s
        assert request.stop_after == request.prompt_tokens + 1
    if kept == 1:
        assert len(found) == int((at_s >= replay.from_s).sum())


def test_the_shipped_traces_are_those_that_were_published():
    """Counts, spans and means of the published files; `code` is far burstier than `conv`."""
    code, conv = (read_trace(find_trace(f"azure-2023-{name}", Path())) for name in ("code", "conv"))
    assert (len(code.at_s), len(conv.at_s)) == (8819, 19_366)
    assert (code.at_s[-1], conv.at_s[-1]) == (pytest.approx(3435.9, abs=0.1), pytest.approx(3501.7, abs=0.1))
    means = [lengths.mean() for t in (code, conv) for lengths in (t.prompt_tokens, t.output_tokens)]
    assert means == [pytest.approx(mean, abs=0.06) for mean in (2047.8, 27.9, 1154.7, 211.1)]
    spread = [np.diff(trace.at_s).std() / np.diff(trace.at_s).mean() for trace in (code, conv)]
    assert spread == [pytest.approx(13.15, abs=0.05), pytest.approx(1.09, abs=0.01)]


def test_shipped_traces_say_whose_they_are():
    page = next(folder / "README.md" for folder in FOLDERS if folder.is_dir()).read_text()
    assert all(f"`{file.name}`" in page for folder in FOLDERS for file in folder.glob("*.gz"))
    assert "CC-BY" in page
    assert "Splitwise" in page


def test_a_real_engine_gets_the_same_schedule(tmp_path: Path):
    load(tmp_path)
    done = CliRunner().invoke(schedule, [str(tmp_path / "test.toml")], catch_exceptions=False)
    arrivals = [json.loads(line) for line in done.output.splitlines()[1:]]
    assert [(a["at_s"], a["prompt_tokens"], a["max_tokens"]) for a in arrivals] == [
        (0, 100, 10),
        (1.5, 7, 3),
        (20, 40, 1),
    ]


def test_seconds_and_plain_names_will_do_and_so_will_gzip(tmp_path: Path):
    file = tmp_path / "mine.csv.gz"
    file.write_bytes(gzip.compress(b"output_tokens,at_s,prompt_tokens,more\n5,0.5,6,x\n7,2,8,y\n"))
    trace = read_trace(file)
    assert (trace.at_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == (
        [0, 1.5],
        [6, 8],
        [5, 7],
    )


HEAD = "at_s,prompt_tokens,output_tokens\n"
# what the file holds · what the message says
WRONG = {
    "nothing": ("", "the header must have the columns"),
    "other columns": ("a,b,c\n1,2,3", ":1: the header must have the columns"),
    "no request": (HEAD, "holds no request"),
    "too few columns": (HEAD + "1,2", ":2: has 2 columns"),
    "no time": (HEAD + "soon,2,3", ":2: 'soon' is neither seconds nor an ISO date"),
    "not a number": (HEAD + "nan,2,3", ":2: 'nan' is no time"),
    "not ascending": (HEAD + "2,1,1\n1,1,1", ":3: comes before"),
    "no token": (HEAD + "1,0,3", ":2: lengths are whole numbers"),
    "negative": (HEAD + "1,5,-3", ":2: lengths are whole numbers"),
    "endless line": (HEAD + "1" * 5000, ":2: a line is longer than"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_trace_is_named_with_its_line(tmp_path: Path, name: str):
    rows, message = WRONG[name]
    with pytest.raises(ScenarioError) as error:
        load(tmp_path, rows=rows)
    assert error.value.key == "load[0].trace"
    assert "mine.csv" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"\x1f\x8b broken", id="no gzip"),
        pytest.param(gzip.compress(HEAD.encode() * 9)[:-9], id="cut gzip"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, raw: bytes):
    for name in ("mine.csv", "mine.csv.gz"):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)


# what replaces the trace's line · the key that the message names · what it says
BAD: dict[str, tuple[str, str, str]] = {
    "no trace": ("", "load[0].trace", "needs it"),
    "unknown name": ('trace = "azure-2099"', "load[0].trace", "azure-2023-code, azure-2023-conv"),
    "no file": ('trace = "other.csv"', "load[0].trace", "No such file"),
    "a rate": ('trace = "mine.csv"\nrate_per_s = 3', "load[0].rate_per_s", "speed"),
    "from beyond its end": ('trace = "mine.csv"\ntrace_from_s = 21', "load[0].trace_from_s", "within the trace's 20 s"),
    "backwards": ('trace = "mine.csv"\nspeed = -1', "load[0].speed", "above 0"),
    "no name": ('trace = "mine.csv"\nprompt_tokens = { trace = 3 }', "load[0].prompt_tokens.trace", "name of a trace"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_stream_that_cannot_be_played_is_refused_with_its_key(tmp_path: Path, name: str):
    line, key, message = BAD[name]
    with pytest.raises(ScenarioError) as error:
        load(tmp_path, TEXT.replace('trace = "mine.csv"', line))
    assert error.value.key == key, str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["trace = 'mine.csv'", "trace_from_s = 1", "speed = 2"])
def test_keys_of_a_trace_have_no_meaning_elsewhere(tmp_path: Path, key: str):
    lengths: dict[str, Any] = {"prompt_tokens": 5, "output_tokens": 5}
    other = "\n".join(["rate_per_s = 1", key, *(f"{k} = {v}" for k, v in lengths.items())])
    with pytest.raises(ScenarioError, match="has no meaning"):
        load(tmp_path, TEXT.replace('arrivals = "trace"\ntrace = "mine.csv"', other))
