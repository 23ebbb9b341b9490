"""What lies beside the pages: spans as exporters write them, a table of the host, a server's log with another zone."""

import json
from datetime import UTC, datetime

import pytest

from gpuwatch.config import Config
from gpuwatch.diagnose import MaterialError, examine
from gpuwatch.diagnose.host_table import HostTable
from gpuwatch.diagnose.span_lines import SpanFile
from gpuwatch.diagnose.told import text
from tests.diagnosis.recordings import START, curl_loop, engine_pages

FLAT = {
    "trace_id": "5b8efff798038103d269b633813fc60c", "span_id": "eee19b7ec3c1b174", "name": "llm_request",
    "start": START + 10.0, "end": START + 14.0,
    "attributes": {
        "gen_ai.latency.time_to_first_token": 3.0, "gen_ai.latency.time_in_queue": 2.5,
        "gen_ai.latency.time_in_model_prefill": 0.5, "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.usage.prompt_tokens": 700, "gen_ai.usage.completion_tokens": 40, "gen_ai.request.id": "cmpl-1",
    },
}  # fmt: skip


def spans_of(text):
    file = SpanFile("engine")
    file.read(text.encode().splitlines(keepends=True))
    return file


def stages(file):
    """Stage code → length in seconds, over all spans."""
    return {
        int(code): round(float(end - start), 3)
        for _, batch in file.items
        for spans in batch.spans
        for code, start, end in zip(spans.stage, spans.start, spans.end, strict=True)
    }


def as_otlp(flat):
    values = {int: "intValue", float: "doubleValue", str: "stringValue"}
    attributes = [{"key": k, "value": {values[type(v)]: v}} for k, v in flat["attributes"].items()]
    span = {
        "traceId": flat["trace_id"], "spanId": flat["span_id"], "name": flat["name"], "attributes": attributes,
        "startTimeUnixNano": str(int(flat["start"] * 1e9)), "endTimeUnixNano": str(int(flat["end"] * 1e9)),
    }  # fmt: skip
    return {
        "resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "vllm.tracing.otel"}, "spans": [span]}]}]
    }


def as_sdk_json(flat, indent=None):
    """What opentelemetry-sdk itself prints for such a span."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    span = provider.get_tracer("vllm.tracing.otel").start_span(
        flat["name"], start_time=int(flat["start"] * 1e9), attributes=flat["attributes"]
    )
    span.end(int(flat["end"] * 1e9))
    return kept.get_finished_spans()[0].to_json(indent=indent)


def test_all_forms_of_a_span_give_the_same_stages():
    """A flat line, a collector's export, and what the SDK prints, on one line or over many."""
    forms = [json.dumps(FLAT), json.dumps(as_otlp(FLAT)), as_sdk_json(FLAT), as_sdk_json(FLAT, 4)]
    told = [stages(spans_of(text + "\n")) for text in forms]
    assert told[0]
    assert all(one == told[0] for one in told), told
    assert max(told[0].values()) == 4.0


def test_what_is_no_span_is_counted_and_costs_nothing_else():
    lines = [
        json.dumps(FLAT),
        "{",
        '{"name": 5}',
        "not json",
        json.dumps(FLAT | {"start": None}),
        "{}",
        json.dumps(FLAT),
    ]
    file = spans_of("\n".join(lines))
    assert file.unread >= 2
    good = spans_of("\n".join([json.dumps(FLAT)] * 2))
    assert stages(spans_of("\n".join(["not json", json.dumps(FLAT)]))) == stages(good)


def test_a_host_table_is_read_by_its_columns():
    """Catalogue names, aliases with units, counters; an unknown column is counted, a cell that is no number missing."""
    table = HostTable("engine")
    rows = [
        "t_wall,cpu_percent,host_memory_used_ratio,rss_mb,cpu_s,nr_periods,nr_throttled,power.draw [W],mood",
        f"{START},50,0.25,1000,10.0,100,0,300.5 W,fine",
        f"{START + 10},90,oops,1100,25.0,200,40,310,fine",
        f"{START + 10},90",
        "late,1,1,1,1,1,1,1,fine",
    ]
    table.read([row.encode() + b"\n" for row in rows])
    assert table.unknown == ["mood"]
    assert table.dropped == 3
    (_, first), (_, second) = table.items

    def told(batch):
        return {n: round(float(v), 6) for f in batch.frames for n, v in zip(f.names, f.values[0], strict=True)}

    assert told(first) == {
        "host_cpu_ratio": 0.5, "host_memory_used_ratio": 0.25, "process_memory_bytes": 1000 * 2**20,
        "gpu_power_watts": 300.5,
    }  # fmt: skip
    assert told(second) == {
        "host_cpu_ratio": 0.9, "process_memory_bytes": 1100 * 2**20, "process_cpu_ratio": 1.5,
        "cgroup_cpu_throttled_ratio": 0.4, "gpu_power_watts": 310.0,
    }  # fmt: skip


def test_a_row_for_each_process_counts_the_busiest_and_adds_memory():
    table = HostTable("engine")
    rows = [
        "t,pid,cpu_s,rss_bytes",
        f"{START},1,0,10",
        f"{START},2,0,30",
        f"{START + 2},1,2,10",
        f"{START + 2},2,0.5,30",
    ]
    table.read([row.encode() for row in rows])
    (frame,) = table.items[1][1].frames
    assert dict(zip(frame.names, frame.values[0].tolist(), strict=True)) == {
        "process_cpu_ratio": 1.0, "process_memory_bytes": 40.0,
    }  # fmt: skip


def test_everything_in_a_folder_is_one_incidents_material(tmp_path):
    """Pages, spans, host and log of one engine; the log's clock stands two hours off and is laid beside them."""
    folder = curl_loop(tmp_path, engine_pages("batch_thrashing")[:60])
    (folder / "spans.jsonl").write_text(json.dumps(FLAT) + "\n")
    (folder / "host.csv").write_text(f"t_wall,cpu_percent\n{START + 5},40\n{START + 6},41\n")
    stats = (
        "Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 239.2 tokens/s, Running: 8 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 9.2%, Prefix cache hit rate: 0.0%"
    )
    two_hours_off = (datetime.fromtimestamp(START + 7200 + s, UTC) for s in (10, 20, 30))
    lines = [f"INFO {at:%m-%d %H:%M:%S} [loggers.py:118] {stats}" for at in two_hours_off]
    (folder / "server.log").write_text("\n".join(lines) + "\n")
    answer = examine([str(folder)], Config())
    assert sorted(s.role for s in answer.verdict.sources) == ["engine", "host", "log", "spans"]
    assert {s.subject for s in answer.verdict.sources} == {"engine/engine/0", "host/host"}
    assert any("its clock is +2 h from the other sources'" in note for note in answer.notes), answer.notes
    kinds = " ".join(one.what for one in answer.found)
    assert "spans (" in kinds
    assert "host table" in kinds
    assert "log of vllm" in kinds


def test_several_sources_on_the_command_line_are_one_incident(tmp_path):
    pages = curl_loop(tmp_path / "pages", engine_pages("healthy_steady")[:40])
    gpu = tmp_path / "gpu.txt"
    gpu.write_text('DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 95\n')
    answer = examine([str(gpu), str(pages)], Config())
    assert {s.role for s in answer.verdict.sources} == {"engine", "gpu"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "t,colour\n1764000000,red\n", "a.csv: line 1: no column that is known among t, colour"),
        ("a.html", "<html></html>", "an HTML page, not metrics"),
        ("a.json", '{"a": 1}', "JSON of a kind that is not known"),
        ("a.bin", "a\0b", "binary"),
        ("a.txt", "", "empty"),
        ("a.txt", "hello\nworld\n", "nothing in it is known"),
        ("i.csv", "n,t_wall\n1,1764000000\n", "give the folder that it lies in"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_with_what_it_is(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(MaterialError) as error:
        examine([str(tmp_path / name)], Config())
    assert says in str(error.value)
    assert name in str(error.value)


def test_a_log_without_times_gives_its_incident_no_date(tmp_path):
    path = tmp_path / "engine.log"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0\n")
    answer = examine([str(path)], Config())
    assert answer.verdict.incidents
    assert "when is not known" in text(answer)


def test_a_file_of_nothing_says_what_was_looked_for_and_what_to_give(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("hello\nworld\n")
    with pytest.raises(MaterialError, match=r"2 lines.*Looked for.*Give"):
        examine([str(path)], Config())
