"""The world stream of a simulated run: valid by docs/capture.md, true to the engine, and the same bytes again."""

import base64
import io
import json
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from engine_shim.demand.scenario import parse_scenario
from engine_shim.devices.profile_file import device_named
from engine_shim.runners.modelled.device_window import DeviceWindow
from engine_shim.settings.engine import EngineSettings
from engine_shim.simulation.assemble import simulate
from engine_shim.step import REQUEST_FIELDS, STEP_FIELDS

START = 1_764_000_000.0

TABLE: dict[str, Any] = {
    "about": "",
    "duration_s": 40,
    "engine": {"model": "7b", "kv_pool_tokens": 12_000, "max_num_seqs": 16, "reserve": "prompt"},
    "load": [
        {"name": "chat", "rate_per_s": 4.0, "prompt_tokens": {"uniform": [100, 900]}, "output_tokens": {"uniform": [50, 200]}},
        {"name": "big", "rate_per_s": 0.3, "prompt_tokens": 9000, "output_tokens": 100, "from_s": 10},
    ],
    "expect": {"class": "none"},
}  # fmt: skip

Line = dict[str, Any]


@cache
def played(mode: str = "full", seed: int = 1, fault: str = "", device: str = "h100", tp: int = 1) -> bytes:
    faults = {
        "": [],
        "hang": [{"kind": "hung_step", "at_s": 12.0, "until_s": 30.0}],
        "restart": [{"kind": "restart", "at_s": 12.0, "down_s": 8.0}],
    }[fault]
    engine = TABLE["engine"] | {"tensor_parallel": tp}
    scenario = parse_scenario(TABLE | {"fault": faults, "engine": engine}, file="t", stem="test", device=device)
    out = io.BytesIO()
    simulate(scenario, out, device=device, seed=seed, mode=mode)
    return out.getvalue()


def lines(*args: Any, **more: Any) -> list[Line]:
    return [json.loads(line) for line in played(*args, **more).splitlines()]


def of(source: str, *args: Any, **more: Any) -> list[Line]:
    return [line for line in lines(*args, **more) if line.get("src") == source]


def columns(source: str, *args: Any, **more: Any) -> dict[str, list[Any]]:
    whole: dict[str, list[Any]] = {}
    for line in of(source, *args, **more):
        for name, values in line["cols"].items():
            whole.setdefault(name, []).extend(values)
    return whole


@pytest.mark.parametrize("mode", ["full", "wire", "vllm-defaults"])
@pytest.mark.parametrize("fault", ["", "hang", "restart"])
def test_a_stream_is_a_valid_capture(mode: str, fault: str):
    """Header first, ordered times, known sources, columns of equal length, `end` last."""
    header, *records = lines(mode, fault=fault)
    assert (header["gpuwatch_capture"], header["clock"], header["t"], header["engine"]) == (1, "virtual", START, "shim")
    assert header["meta"] == {"scenario": "test", "device": "h100", "seed": 1, "model": "7b"}
    times = [r["t"] for r in records]
    assert all(a <= b for a, b in pairwise(times))
    assert {r["src"] for r in records} <= {
        "steps", "requests", "spans", "page", "otlp", "readings", "info", "event", "error", "end",
    }  # fmt: skip
    for record in records:
        lengths = {len(values) for values in record.get("cols", {}).values()}
        assert len(lengths) <= 1, record["src"]
    assert records[-1] == {"t": START + 40, "src": "end"}
    assert sum(r["src"] == "end" for r in records) == 1


@pytest.mark.parametrize("mode", ["full", "wire", "vllm-defaults"])
def test_the_same_seed_gives_the_same_bytes(mode: str):
    first = played(mode)
    played.cache_clear()
    assert played(mode) == first
    assert played(mode, seed=2) != first


def test_steps_are_complete_and_in_order():
    steps = columns("steps")
    assert list(steps) == list(STEP_FIELDS)
    assert steps["step"] == list(range(1, len(steps["step"]) + 1))
    assert all(a <= b for a, b in pairwise(steps["ended_at"]))
    assert all(b <= e for b, e in zip(steps["begun_at"], steps["ended_at"], strict=True))
    assert max(steps["waiting"]) > 3  # the big prompts block: the scenario has something to show


def test_a_step_arrives_after_it_has_ended():
    for line in of("steps"):
        assert all(at <= line["t"] for at in line["cols"]["ended_at"])
        if line["open"] is not None:
            assert line["open"]["begun_at"] <= line["t"]
            assert line["open"]["ended_at"] == 0


def test_a_hung_step_stays_open():
    """During the hang no step ends, one is open, requests pile up in the table, and a page still answers."""
    blocks = [b for b in of("steps", fault="hang") if START + 14 <= b["t"] <= START + 29]
    assert [len(b["cols"]["step"]) for b in blocks] == [0] * len(blocks)
    assert len({b["open"]["begun_at"] for b in blocks}) == 1
    assert len([p for p in of("page", fault="hang") if START + 14 <= p["t"] <= START + 29]) >= 7


def test_spans_tell_what_the_steps_tell():
    """As many requests have finished by their spans as by the counters, bar those younger than the exporter's delay."""
    spans, steps = columns("spans"), columns("steps")
    finished = sum(outcome in ("stop", "length") for outcome in spans["outcome"])
    in_steps = max(f for f, at in zip(steps["finished_total"], steps["ended_at"], strict=True) if at <= START + 39.5)
    assert finished == pytest.approx(in_steps, abs=3)
    assert finished > 50
    assert set(spans["stage"]) >= {"queue", "prefill", "decode", "request"}


def test_a_requests_stages_fill_its_life():
    """Queue, prefill and decode follow on each other from its first to its last moment."""
    spans = columns("spans")
    rows = list(zip(spans["request"], spans["stage"], spans["start"], spans["end"], strict=True))
    whole = {name: (start, end) for name, stage, start, end in rows if stage == "request"}
    for name, (_, end) in whole.items():
        stages = sorted((s, e) for n, stage, s, e in rows if n == name and stage != "request")
        assert all(a[1] == b[0] for a, b in pairwise(stages))
        assert stages[-1][1] == end


def test_spans_come_after_the_exporters_delay():
    for line in of("spans"):
        ends = [e for e, stage in zip(line["cols"]["end"], line["cols"]["stage"], strict=True) if stage == "request"]
        assert all(0.5 <= line["t"] - end <= 1.5 + 1e-6 for end in ends)


def test_the_table_and_the_spans_speak_of_the_same_requests():
    """Ids are hashes that fit a float64: the table's number is the span's hex."""
    assert list(of("requests")[0]["cols"]) == list(REQUEST_FIELDS)
    table = {f"{int(float(i)):016x}" for i in columns("requests")["id"]}
    spans = set(columns("spans")["request"])
    assert len(spans & table) > 0.8 * len(spans)
    text = played()
    assert b"chat-1" not in text
    assert b"big-1" not in text


def test_readings_come_every_second_in_base_units():
    readings = of("readings")
    assert len(readings) == 40
    for line in readings:
        assert line["subject"]["gpu"].startswith("GPU-")
        ratios = {k: v[0] for k, v in line["cols"].items() if k.endswith("_ratio")}
        assert all(0 <= v <= 1 for v in ratios.values()), ratios
        assert 60 <= line["cols"]["gpu_power_watts"][0] <= 700
        assert 3e8 <= line["cols"]["gpu_sm_clock_hertz"][0] <= 2e9


def test_each_gpu_of_the_engine_is_shown():
    assert len({line["subject"]["gpu"] for line in of("readings", tp=2)}) == 2
    page = of("page", "wire", tp=2)
    assert sum('gpu="1"' in p["body"] for p in page if p["role"] == "gpu") == 40


def test_the_page_agrees_with_the_steps():
    """At each page the counters are those of the last completed step."""
    steps = columns("steps")
    ended = np.array(steps["ended_at"])
    pages = of("page")
    assert len(pages) == 20
    for page in pages:
        last = int(np.searchsorted(ended, page["t"], side="right")) - 1
        values = {s.name: s.value for f in text_string_to_metric_families(page["body"]) for s in f.samples}
        assert values["shim:generation_tokens_total"] == steps["generated_tokens_total"][last]
        assert values["shim:step_seconds_count"] == steps["step"][last]
        assert values["shim:inter_token_latency_seconds_count"] <= steps["generated_tokens_total"][last]


def test_a_restart_shows_as_one():
    """Refused connections while it is down, then an event, new info and counters from zero."""
    refused = of("error", fault="restart")
    assert [r["t"] - START for r in refused] == [13, 15, 17, 19]
    (event,) = of("event", fault="restart")
    assert (event["what"], event["t"]) == ("restart", START + 20)
    first, second = of("info", fault="restart")
    assert float(second["labels"]["started_at"]) == START + 20
    assert first["labels"]["arguments_fingerprint"] == second["labels"]["arguments_fingerprint"]
    after = [p for p in of("page", fault="restart") if p["t"] > START + 20]
    arrived = [
        s.value for f in text_string_to_metric_families(after[0]["body"]) for s in f.samples if "arrived" in s.name
    ]
    assert arrived[0] < 10
    assert not [b for b in of("steps", fault="restart") if START + 13 <= b["t"] < START + 20]


def test_the_wire_shows_pages_and_otlp_only():
    assert {r["src"] for r in lines("wire")[1:]} == {"info", "page", "otlp", "end"}
    spans: list[Any] = []
    for line in of("otlp", "wire"):
        message = ExportTraceServiceRequest.FromString(base64.b64decode(line["body"]))
        spans += [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]
    parents = [s for s in spans if not s.parent_span_id]
    assert len(parents) == sum(stage == "request" for stage in columns("spans")["stage"])


def test_vllm_defaults_show_very_little():
    """vLLM's names at 1 Hz and a stock GPU page that is renewed every 30 s; no ring, no spans, no info."""
    records = lines("vllm-defaults")[1:]
    assert {r["src"] for r in records} == {"page", "end"}
    pages = [r for r in records if r.get("role") == "engine"]
    assert len(pages) == 40
    assert "shim:" not in pages[-1]["body"]
    gpu = [r["body"] for r in records if r.get("role") == "gpu"]
    assert len(set(gpu)) == 2
    assert "SM_ACTIVE" not in gpu[0]


def test_a_reading_is_averaged_over_time():
    """A quarter of the window at full activity, a quarter in an open step at half, the rest idle."""
    window = DeviceWindow(device_named("h100"), EngineSettings(model="7b"), 1000, 100.0)

    def reading(active: float) -> dict[str, float]:
        names = ("gr_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio",
                 "dram_active_ratio", "power_watts", "sm_clock_hertz")  # fmt: skip
        return dict.fromkeys(names, active)

    whole = {name: np.array([value]) for name, value in reading(1.0).items()}
    window.steps(np.array([99.0]), np.array([101.0]), whole)  # one second of it lies in the window
    values = window.close(104.0, 103.0, reading(0.5), reading(0.0), up=True)
    assert values["gpu_sm_active_ratio"] == pytest.approx(0.375)
    assert values["gpu_util_ratio"] == pytest.approx(0.5)
    assert values["gpu_energy_joules_total"] == pytest.approx(0.375 * 4)
    # The open step ends in the next window and is not counted twice.
    window.steps(np.array([103.0]), np.array([105.0]), whole)
    values = window.close(108.0, None, {}, reading(0.0), up=False)
    assert values["gpu_sm_active_ratio"] == pytest.approx(0.25)
    assert values["gpu_memory_used_bytes"] == 0
