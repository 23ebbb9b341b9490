"""A hostile line costs its length and nothing else: no crash, no quadratic time, no memory beyond the bounds."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.catalog import check_value
from gpuwatch.sources.logs import LogRead, read_log
from gpuwatch.sources.logs.phrases import PHRASES
from gpuwatch.sources.logs.reader import MOST_RANKS
from gpuwatch.sources.logs.told import MOST_NOTICES
from tests.logs.told import notices, v1

MEGABYTE = 1_000_000
REPEATED = [
    "a", " ", "a ", "a: ", "1", "1.", "1,", "[", "((", "#", "a:1 ", "2025-10-15T00:02:38Z ", "INFO 10-14 17:02:38 ",
    "INFO 10-14 17:02:38x", "(APIServer pid=1) ", "[TRT-LLM] [I] ", "x  | ", "[pod/x] ", "Engine 000: ", '{"log":"',
    "2025-07-28T01:00:00.1Z stdout P ", "Running: 1 reqs, ", "\x1b[1;36m", "Decode batch. #", "TP0 ", "slot 0 ", "=", "1s",
    'queue_time="1s" ', "NVRM: Xid (", "prompt eval time = ", "max_num_seqs=1 ", '"A":1,', "é", "\x00", "Preempting request ",
]  # fmt: skip


def assert_sane(found: LogRead) -> None:
    """In order of time, and nothing that the catalogue calls impossible."""
    times = [at for at, _ in found.calls]
    assert times == sorted(times)
    for _, batches in found.calls:
        for frame in (frame for batch in batches for frame in batch.frames):
            assert (frame.at[1:] >= frame.at[:-1]).all()
            assert all(
                check_value(n, v) for row in frame.values.tolist() for n, v in zip(frame.names, row, strict=True)
            )


@pytest.mark.parametrize("unit", REPEATED)
def test_a_megabyte_of_repetition_takes_no_longer_than_its_length(unit):
    line = (unit * (MEGABYTE // len(unit))).encode()
    whole = [line, b"INFO 10-14 17:02:38 [loggers.py:1] Engine 000: Avg prompt throughput: " + line]
    began = time.process_time()
    assert_sane(read_log(whole, "e", 0.0))
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.literal)
def test_no_phrase_is_dear_when_it_is_repeated(phrase):
    line = ((phrase.literal + " ") * (MEGABYTE // 10 // len(phrase.literal))).encode()
    began = time.process_time()
    assert_sane(read_log([line, phrase.literal.encode() + b" 1" * 50_000], "e", 0.0))
    assert time.process_time() - began < 0.5


PIECES = st.sampled_from(
    [p.literal for p in PHRASES] + REPEATED + [v1(0, 1, 1, 1, 0, 1), "1e400", "9" * 400, "NaN", "-1", "%"]
)
ODD = st.lists(PIECES | st.text(max_size=20) | st.floats().map(str) | st.integers().map(str), max_size=15)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(ODD.map(" ".join).map(str.encode) | st.binary(max_size=200), max_size=12), st.none() | st.floats(0, 4e9)
)
def test_any_log_is_read(lines, start_at):
    assert_sane(read_log(lines, "e", start_at))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_mutated_line_is_read(data):
    line = bytearray(v1(0, 382.6, 118.5, 35, 117, 99.2).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=4))
    assert_sane(read_log([bytes(line)] * 3, "e", 0.0))


def test_ranks_are_bounded():
    found = read_log([v1(0, 1.0, 1.0, 1, 0, 1.0, f"Engine {i:03d}").encode() for i in range(500)], "e", 0.0)
    assert len({f.subject.rank for _, b in found.calls for f in b[0].frames}) == MOST_RANKS
    assert found.dropped["ranks"] == 500 - MOST_RANKS


def test_notices_of_one_second_are_bounded():
    too_long = b"2025-10-15T00:02:38Z request (%d tokens) exceeds the available context size"
    found = read_log([too_long % i for i in range(1000)], "e", 0.0)
    assert len(notices(found)) == MOST_NOTICES
    assert found.dropped["notices"] == 1000 - MOST_NOTICES


def test_a_gap_of_a_year_costs_nothing():
    lines = [b"[2025-01-01 00:00:00] x", b"[2025-01-01 00:00:00 TP0] Decode batch. #running-req: 1, #queue-req: 0"]
    lines += [b"[2025-12-31 00:00:00 TP0] Decode batch. #running-req: 1, #queue-req: 0"]
    assert len(read_log(lines, "e").calls) < 100
    still = [v1(0, 0.0, 0.0, 1, 0, 1.0), "INFO 12-31 00:00:00 [a.py:1] x"]
    assert len(read_log([line.encode() for line in still], "e").calls) <= 7300


def test_a_long_log_is_read_at_speed():
    """An access log with stats lines in it: well over ten thousand lines a second, on a busy machine."""
    noise = b'(APIServer pid=1) INFO:     10.0.0.1:50000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    lines = [noise] * 20_000 + [v1(10 * k, 1.0, 1.0, 1, 0, 1.0).encode() for k in range(300)]
    began = time.process_time()
    found = read_log(lines, "e", 0.0)
    assert found.read == 300
    assert time.process_time() - began < 2.0
