"""Lines that were wrapped in the middle are put together, records that share a line are taken apart."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sources.logs.reader import LINE_BYTES
from tests.logs.told import kinds, last, notices, only, read, rows, v1

WHOLE = v1(0, 382.6, 118.5, 35, 117, 99.2)
SGLANG = (
    "[2025-06-12 11:41:56 TP0] Decode batch. #running-req: 36, #token: 9580, token usage: 0.96, cuda graph: True, gen throughput "
    "(token/s): 429.55, #queue-req: 312"
)


@settings(deadline=None, max_examples=40)
@given(st.integers(len(WHOLE) - 60, len(WHOLE) - 1) | st.integers(60, len(WHOLE) - 1))
def test_a_line_of_vllm_may_be_wrapped_anywhere(cut):
    found = read(WHOLE[:cut], WHOLE[cut:], 'INFO:     10.0.0.1:7 - "GET /health HTTP/1.1" 200 OK')
    assert last(found) == last(read(WHOLE))
    assert found.torn == 1


@settings(deadline=None, max_examples=40)
@given(st.integers(50, len(SGLANG) - 1))
def test_a_line_of_sglang_may_be_wrapped_anywhere(cut):
    found = read(SGLANG[:cut], SGLANG[cut:])
    assert last(found) == last(read(SGLANG))


def test_a_line_may_be_wrapped_more_than_once():
    found = read(WHOLE[:90], WHOLE[90:150], WHOLE[150:230], WHOLE[230:])
    assert last(found) == last(read(WHOLE))


def test_what_follows_a_whole_line_is_not_its_rest():
    found = read(WHOLE, "Running: 1 reqs", WHOLE.replace("01:00:00", "01:00:10"))
    assert [row["req_running"] for row in rows(found)] == [35.0] * 11
    assert found.torn == 0


def test_two_records_in_one_line_are_two():
    found = read(WHOLE + v1(10, 0.0, 50.0, 7, 0, 50.0))
    assert last(found)["req_running"] == 7.0
    assert rows(found)[0]["req_running"] == 35.0
    found = read(
        WHOLE + "WARNING 07-28 01:00:05 [a.py:1] RuntimeError: CUDA error: uncorrectable ECC error encountered"
    )
    assert (kinds(found), last(found)["req_running"]) == (["ecc_error"], 35.0)


def test_two_engines_in_one_line_are_two():
    found = read(WHOLE + WHOLE[WHOLE.index("Engine 000") :].replace("Engine 000", "Engine 001").replace("35", "36"))
    assert [last(found, rank)["req_running"] for rank in (0, 1)] == [35.0, 36.0]


def test_pieces_of_a_container_runtime_are_one_line():
    cri = ["2025-07-28T01:00:00.1Z stdout P " + WHOLE[:100], "2025-07-28T01:00:00.2Z stdout P " + WHOLE[100:200]]
    cri.append("2025-07-28T01:00:00.3Z stdout F " + WHOLE[200:])
    assert only(read(*cri), ["req_running", "kv_usage_ratio"]) == {"req_running": 35.0, "kv_usage_ratio": 0.992}
    docker = [
        '{"log":"' + WHOLE[:100] + '","stream":"stdout","time":"2025-07-28T01:00:00.1Z"}',
        '{"log":"' + WHOLE[100:] + '\\n","stream":"stdout","time":"2025-07-28T01:00:00.1Z"}',
    ]
    assert only(read(*docker), ["req_running", "kv_usage_ratio"]) == {"req_running": 35.0, "kv_usage_ratio": 0.992}


def test_a_monstrous_line_is_cut_in_its_middle_and_counted():
    """TGI's fields stand behind the parameters, which may hold a whole grammar."""
    found = read(
        "2025-05-01T01:31:02.842858Z  INFO generate{parameters=GenerateParameters { grammar: Some(" + "x" * LINE_BYTES * 4
        + ') } total_time="2s" queue_time="1s"}: text_generation_router::server: Success'
    )  # fmt: skip
    assert found.dropped["long_lines"] == 1
    assert notices(found)[0]["queue_seconds"] == "1"


@pytest.mark.parametrize("bad", [b"\xff\xfe\x00", b"\x80" * 50, "é".encode("latin-1"), b"\0"])
def test_bytes_that_are_no_text_are_survived(bad):
    from gpuwatch.sources.logs import read_log

    found = read_log([bad + WHOLE.encode() + bad + b"\r\n", bad], "e", 0.0)
    assert last(found)["req_running"] == 35.0
