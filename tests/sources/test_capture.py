"""Captures: what the page docs/capture.md says, what the simulation writes, and everything that is none."""

import base64
import gzip
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuwatch.model import STAGES, Subject
from gpuwatch.sources.files.capture import CaptureError, calls, capture_lines, read_capture

HEADER = {
    "gpuwatch_capture": 1,
    "producer": "test",
    "clock": "virtual",
    "t": 1000.0,
    "engine": "e",
    "meta": {"seed": 1},
}
VLLM = (Path(__file__).parent.parent / "captures" / "vllm-0.32.0-synthetic.txt").read_text()
ENGINE = Subject(engine="e")


def lines(*records, header=HEADER):
    return [json.dumps(record).encode() + b"\n" for record in (header, *records)]


def batches(*records):
    return [batch for _, batch in read_capture(lines(*records))]


def one(record):
    (batch,) = batches({"t": 1001.0, **record})
    return batch


def test_the_header_is_read_at_once():
    capture = read_capture(lines())
    assert (capture.header.engine, capture.header.t, capture.header.meta) == ("e", 1000.0, {"seed": 1})


def test_steps_become_a_frame_and_an_open_step():
    batch = one({
        "src": "steps",
        "cols": {"begun_at": [1000.1, 1000.2], "ended_at": [1000.2, 1000.4], "running": [3, None],
                 "kv_used_blocks": [1, 2], "kv_total_blocks": [4, 4], "from_the_future": [1, 2]},
        "open": {"begun_at": 1000.5, "ended_at": 0, "running": 4, "waiting": 2, "prefill_tokens": 8, "decode_tokens": 0},
    })  # fmt: skip
    (frame,) = batch.frames
    read = dict(zip(frame.names, frame.values.T.tolist(), strict=True))
    assert (frame.subject, frame.source, batch.role) == (ENGINE, "steps", "steps")
    assert frame.at.tolist() == [1000.2, 1000.4]
    assert read["kv_usage_ratio"] == [0.25, 0.5]
    assert read["req_running"][0] == 3
    assert math.isnan(read["req_running"][1]), "null is not known, and not zero"
    assert batch.open_steps[0].begun_at == 1000.5
    assert "from_the_future" not in read


def test_a_block_without_steps_and_no_open_step_says_that_nothing_runs():
    batch = one({"src": "steps", "cols": {"begun_at": [], "ended_at": []}, "open": None})
    assert (batch.frames, batch.open_steps, batch.role) == ((), (), "steps")


def test_requests_become_the_live_table():
    batch = one({"src": "requests", "cols": {
        "id": [2**52 - 1, "ff"], "arrived_at": [999.0, 999.5], "stage": [1, 3], "prompt_tokens": [10, 20],
        "max_tokens": [5, 5], "generated_tokens": [0, 1], "blocks": [0, 2], "preemptions": [0, 1],
    }})  # fmt: skip
    (table,) = batch.requests
    assert table.request.tolist() == [2**52 - 1, 255]
    assert table.blocks.tolist() == [0, 2]


def test_spans_become_columns_and_unknown_stages_are_dropped():
    batch = one({"src": "spans", "cols": {
        "request": ["ab", "ab", "cd"], "stage": ["request", "queue", "teleport"], "start": [998.0, 998.0, 1],
        "end": [1000.0, 999.0, 2], "prompt_tokens": [7, 7, 7], "output_tokens": [3, None, 3],
        "cached_tokens": [0, 0, 0], "outcome": ["length", "", ""],
    }})  # fmt: skip
    (spans,) = batch.spans
    assert [STAGES[code] for code in spans.stage] == ["request", "queue"]
    assert spans.request.tolist() == [0xAB, 0xAB]
    assert np.isnan(spans.output_tokens[1])
    assert batch.dropped == 1


def test_an_engine_page_goes_through_its_dialect_and_a_gpu_page_through_dcgm():
    engine, gpu = batches(
        {"t": 1001.0, "src": "page", "role": "engine", "body": VLLM, "took_s": 0.005},
        {
            "t": 1001.0,
            "src": "page",
            "role": "gpu",
            "body": 'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-a"} 300\n',
            "took_s": None,
        },
    )
    assert dict(zip(engine.frames[0].names, engine.frames[0].values[0], strict=True))["req_running"] == 41
    assert (engine.role, engine.took_s, len(engine.histograms)) == ("engine", 0.005, 11)
    assert (gpu.role, gpu.frames[0].subject.gpu, gpu.frames[0].names) == ("gpu", "GPU-a", ("gpu_power_watts",))


def test_a_page_of_nobody_is_a_failed_poll_and_the_capture_goes_on():
    bad, good = batches({"t": 1001.0, "src": "page", "body": "<html>\n"}, {"t": 1002.0, "src": "page", "body": VLLM})
    assert "no dialect" in bad.error
    assert good.error is None


def test_otlp_readings_info_event_and_error():
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    span = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(name="llm_request", trace_id=b"t" * 16, span_id=b"12345678")
    )
    span.start_time_unix_nano, span.end_time_unix_nano = 999 * 10**9, 1000 * 10**9
    otlp, readings, info, event, error = batches(
        {"t": 1001.0, "src": "otlp", "body": base64.b64encode(message.SerializeToString()).decode()},
        {"t": 1001.0, "src": "readings", "subject": {"gpu": "GPU-a"}, "at": [1000.5, 1001.0],
         "cols": {"gpu_power_watts": [300.0, None], "made_up": [1, 2]}},
        {"t": 1001.0, "src": "info", "labels": {"version": "1", "block_tokens": "16", "kv_total_blocks": "10"}},
        {"t": 1001.0, "src": "event", "what": "restart", "detail": {"epoch": 2}, "rank": 1},
        {"t": 1002.0, "src": "error", "role": "engine", "error": "connection refused"},
    )  # fmt: skip
    assert otlp.spans[0].end.tolist() == [1000.0]
    assert readings.frames[0].names == ("gpu_power_watts",)
    assert readings.frames[0].at.tolist() == [1000.5, 1001.0]
    assert (readings.role, readings.dropped) == ("gpu", 1)
    assert info.info[0].labels["kv_capacity_tokens"] == "160"
    assert (event.events[0].subject.rank, event.events[0].detail) == (1, {"epoch": "2"})
    assert (error.error, error.role, error.subject) == ("connection refused", "engine", ENGINE)


def test_engine_and_rank_override_the_header():
    assert one({"src": "info", "engine": "other", "rank": 3, "labels": {}}).subject == Subject(engine="other", rank=3)


def test_unknown_sources_and_keys_are_counted_and_skipped():
    capture = read_capture(lines(
        {"t": 1001.0, "src": "telepathy", "x": 1}, {"t": 1001.0, "src": "info", "labels": {}, "mood": "good"},
        {"t": 1002.0, "src": "end"},
    ))  # fmt: skip
    assert [batch.role for _, batch in capture] == ["capture"]
    assert dict(capture.unknown) == {"src telepathy": 1, "key info.mood": 1}
    assert capture.complete


@pytest.mark.parametrize(
    "record",
    [
        {"src": "steps", "cols": {"begun_at": [1, 2], "ended_at": [1]}},
        {"src": "requests", "cols": {"id": [1], "stage": [1, 2]}},
        {"src": "spans", "cols": {"request": ["a"], "stage": [], "start": [1], "end": [1]}},
        {"src": "readings", "subject": {"gpu": "g"}, "at": [1], "cols": {"gpu_power_watts": []}},
    ],
    ids=lambda r: r["src"],
)
def test_a_block_of_uneven_columns_is_dropped_and_counted(record):
    capture = read_capture(lines({"t": 1001.0, **record}, {"t": 1002.0, "src": "end"}))
    assert list(capture) == []
    assert (capture.dropped, capture.complete) == (1, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "empty"),
        (b"hello\n", "line 1: not a capture"),
        (b'{"t": 1}\n', "line 1: not a capture"),
        (b'{"gpuwatch_capture": 2, "t": 1}\n', "line 1: capture version 2"),
        (b'{"gpuwatch_capture": 1, "t": 1e999}\n', "line 1"),
        (b"[" * 100_000 + b"\n", "line 1: not a capture"),
    ],
    ids=["empty", "text", "other", "version", "time", "deep"],
)
def test_what_is_no_capture_is_refused_by_name_and_line(text, reason):
    with pytest.raises(CaptureError, match=reason) as caught:
        read_capture(io.BytesIO(text), "my.cap")
    assert "my.cap" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"t": 1001.0}\n',
        b"[1]\n",
        b'{"src": "info", "labels": {}}\n',
        b'{"t": "soon", "src": "info", "labels": {}}\n',
        b'{"t": 1001.0, "src": "info", "labels": 7}\n',
        b'{"t": 1001.0, "src": "steps", "cols": {"running": [1]}}\n',
        b'{"t": 1001.0, "src": "steps", "cols": {"ended_at": ["x"]}}\n',
        b'{"t": 1001.0, "src": "spans", "cols": {"request": ["zz"], "stage": ["queue"], "start": [1], "end": [2]}}\n',
        b'{"t": 1001.0, "src": "requests", "cols": {"id": [-1]}}\n',
        b'{"t": 1001.0, "src": "otlp", "body": "!!!"}\n',
        b'{"t": 1001.0, "src": "otlp", "body": "////"}\n',
        b'{"t": 900.0, "src": "info", "labels": {}}\n',
        b'{"t": 1e18, "src": "info", "labels": {}}\n',
    ],
)
def test_a_malformed_line_is_named_by_its_number(line):
    good = json.dumps({"t": 1000.5, "src": "info", "labels": {}}).encode() + b"\n"
    capture = read_capture([*lines(), good, line], "my.cap")
    with pytest.raises(CaptureError, match=r"my\.cap: line 3: "):
        list(capture)


def test_a_stream_that_stops_in_the_middle_of_a_line_counts_up_to_there():
    text = b"".join(lines({"t": 1001.0, "src": "info", "labels": {}}, {"t": 1002.0, "src": "end"}))
    for length in range(len(lines()[0]), len(text)):
        capture = read_capture(io.BytesIO(text[:length]))
        list(capture)
        assert capture.complete == (length >= len(text) - 1), "the last line feed is not missed"


def test_calls_lie_on_the_grid_without_gaps_and_carry_what_had_been_received():
    records = [{"t": t, "src": "info", "labels": {"at": str(t)}} for t in (1000.0, 1000.4, 1001.0, 1004.2, 1004.3)]
    capture = read_capture(lines(*records, {"t": 1006.0, "src": "end"}))
    found = [(now, [b.info[0].labels["at"] for b in each]) for now, each in calls(capture)]
    assert found == [
        (1000.0, ["1000.0"]), (1001.0, ["1000.4", "1001.0"]), (1002.0, []), (1003.0, []), (1004.0, []),
        (1005.0, ["1004.2", "1004.3"]), (1006.0, []),
    ]  # fmt: skip
    assert capture.complete


def test_calls_come_while_the_stream_still_runs():
    """A pipe from a running simulation: the second is judged when the first record of the next one arrives."""
    asked = []

    def slow():
        for i, line in enumerate(lines(*({"t": 1000.0 + t, "src": "info", "labels": {}} for t in range(5)))):
            asked.append(i)
            yield line

    stream = calls(read_capture(slow()))
    assert next(stream)[0] == 1000.0
    assert len(asked) == 3


def test_plain_and_compressed_files_read_alike_and_a_missing_one_is_named(tmp_path):
    text = b"".join(lines({"t": 1001.0, "src": "info", "labels": {}}, {"t": 1002.0, "src": "end"}))
    plain, packed = tmp_path / "a.cap", tmp_path / "a.cap.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert list(capture_lines(str(plain))) == list(capture_lines(str(packed))) == text.splitlines(keepends=True)
    with pytest.raises(CaptureError, match=r"none\.cap: No such file"):
        list(capture_lines(str(tmp_path / "none.cap")))


def test_a_compressed_file_that_breaks_off_counts_up_to_there_and_a_damaged_one_is_refused(tmp_path):
    many = ({"t": 1000.0 + i, "src": "info", "labels": {"i": str(i * 7919 % 1009)}} for i in range(2000))
    packed = gzip.compress(b"".join(lines(*many, {"t": 3000.0, "src": "end"})))
    path = tmp_path / "a.gz"
    path.write_bytes(packed[: len(packed) // 2])
    capture = read_capture(capture_lines(str(path)))
    assert 100 < len(list(capture)) < 2000
    assert not capture.complete
    path.write_bytes(packed[:200] + b"\0" * 50 + packed[250:])
    with pytest.raises(CaptureError):
        list(read_capture(capture_lines(str(path)), str(path)))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Twenty simulated seconds of the founding case, as each telemetry mode shows them."""
    folder = tmp_path_factory.mktemp("worlds")
    found = {}
    for mode in ("full", "wire", "vllm-defaults"):
        path = folder / f"{mode}.cap"
        words = ["simulate", "batch_thrashing", "--duration", "20", "--telemetry", mode, "--out", str(path)]
        subprocess.run([sys.executable, "-m", "engine_shim", *words], check=True, capture_output=True)
        capture = read_capture(capture_lines(str(path)), path.name)
        found[mode] = (list(calls(capture)), capture)
    return found


@pytest.mark.parametrize("mode", ["full", "wire", "vllm-defaults"])
def test_what_the_simulation_writes_is_read_whole(worlds, mode):
    ticks, capture = worlds[mode]
    everything = [batch for _, each in ticks for batch in each]
    assert (capture.complete, capture.dropped, dict(capture.unknown)) == (True, 0, {})
    assert [batch.error for batch in everything if batch.error] == []
    assert len(ticks) == 21
    assert [e for b in everything for e in b.events] == []


def last(ticks, signal, source=None):
    found = [
        f.values[-1, f.names.index(signal)]
        for _, each in ticks for b in each for f in b.frames
        if signal in f.names and source in (None, f.source)
    ]  # fmt: skip
    return found[-1]


def test_the_modes_tell_the_same_story(worlds):
    full, wire, vllm = (worlds[mode][0] for mode in ("full", "wire", "vllm-defaults"))
    finished = last(full, "req_finished_total", "steps")
    assert finished > 20
    assert last(wire, "req_finished_total") == finished
    assert abs(last(vllm, "req_finished_total") - finished) <= 3
    assert abs(last(vllm, "req_arrived_total") - last(full, "req_arrived_total", "steps")) <= 3
    whole = [sum(int((s.stage == STAGES.index("request")).sum()) for _, e in t for b in e for s in b.spans)
             for t in (full, wire)]  # fmt: skip
    assert whole[0] == whole[1] > 20


def test_the_same_capture_gives_the_same_batches(worlds, tmp_path):
    ticks, _ = worlds["wire"]
    path = tmp_path / "again.cap"
    words = ["simulate", "batch_thrashing", "--duration", "20", "--telemetry", "wire", "--out", str(path)]
    subprocess.run([sys.executable, "-m", "engine_shim", *words], check=True, capture_output=True)
    again = list(calls(read_capture(capture_lines(str(path)))))
    hashes = [[s.request.tolist() for _, e in t for b in e for s in b.spans] for t in (ticks, again)]
    assert hashes[0] == hashes[1]
