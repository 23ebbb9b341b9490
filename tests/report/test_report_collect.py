"""From a record to a report: replayed through the real pipeline, sampled each second, bounded, honest about gaps."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.config import Config
from gpuwatch.model import STAGES, Histogram, LiveRequests, Spans, Subject
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.capsule import CapsuleError, CapsuleWriter
from gpuwatch.recording.quantize import quantized
from gpuwatch.report import NoSuchIncidentError, ReportData, collect, sampling, write_postmortem
from gpuwatch.report.request_spans import SpanLog, in_flight, trailing_p95
from gpuwatch.report.sampling import TtftHistogram
from gpuwatch.sources.files.capture import calls, read_capture

ENGINE = Subject(engine="shim")
QUEUE, PREFILL, DECODE, CLIENT = (STAGES.index(s) for s in ("queue", "prefill", "decode", "client"))


def played(scenario: str, *options: str) -> list:
    """The pipeline calls of a simulated scenario."""
    command = [sys.executable, "-m", "engine_shim", "simulate", scenario, "--seed", "1", "--out", "-", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        return [quantized(*call) for call in calls(read_capture(engine.stdout))]


FLOOD = """
about = "A light load, and then many times more than the engine can serve."
duration_s = 110
[engine]
model = "7b"
max_num_seqs = 32
kv_pool_tokens = 60_000
[[load]]
arrivals = "poisson"
rate_per_s = 4.0
prompt_tokens = 400
output_tokens = 100
[[load]]
from_s = 50
arrivals = "poisson"
rate_per_s = 60.0
prompt_tokens = 400
output_tokens = 100
[expect]
class = "overload"
between_s = [51, 110]
"""


@pytest.fixture(scope="module")
def flood(tmp_path_factory: pytest.TempPathFactory) -> list:
    """A minute of health and a minute of unmistakable harm, whatever its name."""
    path = tmp_path_factory.mktemp("scenario") / "flood.toml"
    path.write_text(FLOOD)
    return played(str(path))


@pytest.fixture(scope="module")
def data(flood: list) -> ReportData:
    return collect(flood, Config(), meta={"device": "h100"}, capsule="x.capsule")


def test_every_plot_has_data_on_the_replays_own_seconds(data: ReportData, flood: list) -> None:
    """With full telemetry nothing is missing; one point a second; values in their units."""
    assert data.gaps == ()
    assert data.ticks == len(flood) == len(data.states)
    for series in data.series.values():
        assert len(series.at) == len(series.values) == len(flood)
        assert series.source
    assert np.nanmax(data.series["kv_usage_ratio"].values) <= 1
    arrivals = data.series["arrivals_per_s"].values
    assert 2 < np.nanmean(arrivals[15:45]) < 6
    assert 55 < np.nanmean(arrivals[65:]) < 75
    assert np.nanmax(data.series["req_waiting"].values) > 10


def test_the_report_is_about_the_verdicts_first_incident(data: ReportData) -> None:
    """And says the model, the engine and the objective of the record."""
    assert data.verdict.incidents
    assert data.incident is data.verdict.incidents[0]
    assert (data.engine, data.model, data.ttft_p95_slo_s) == ("shim", "7b", 1.0)


def test_the_slowest_requests_waited_while_it_lasted(data: ReportData) -> None:
    """Sorted out by time to first token, alive during the incident, their stages without a gap that matters."""
    incident = data.incident
    assert incident is not None
    assert 5 <= len(data.requests) <= 14
    for request in data.requests:
        assert request.end >= incident.onset_at
        starts = [s.start for s in request.segments]
        assert starts == sorted(starts)
    assert all((r.end - r.start if r.ttft_s is None else r.ttft_s) > 1.0 for r in data.requests)


def test_ttft_is_told_from_spans_as_they_were(data: ReportData, flood: list) -> None:
    """The last point of the curve is the P95 of the requests whose first token came in the last 30 s."""
    log = SpanLog()
    for _, batches in flood:
        for batch in batches:
            for spans in batch.spans:
                log.add(spans)
    at, took = log.first_tokens()
    series = data.series["ttft_p95_s"]
    recent = took[(at > series.at[-1] - 30) & (at <= series.at[-1])]
    assert series.values[-1] == pytest.approx(np.quantile(recent, 0.95))


def test_a_page_alone_leaves_gaps_that_are_named() -> None:
    """vLLM's defaults: no head wait, TTFT from the page's histogram, and the reason for what is not plotted."""
    seen = collect(played("batch_thrashing", "--duration", "60", "--telemetry", "vllm-defaults"), Config())
    assert "head_wait_seconds" not in seen.series
    missing = {gap.label: gap.why for gap in seen.gaps}
    assert "step ring" in missing["Wait of the queue's head"]
    assert seen.series["ttft_p95_s"].source.startswith("histogram")
    assert np.nanmax(seen.series["req_running"].values) > 1


def test_bounds_cut_and_count(flood: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record longer than the bound is reported up to it, and the cut is in the report."""
    monkeypatch.setattr(sampling, "MOST_TICKS", 20)
    short = collect(flood, Config())
    assert short.ticks == 20
    assert short.cut["seconds"] == len(flood) - 20


def test_nothing_recorded_is_no_report() -> None:
    """An empty record is an error, not a healthy report."""
    with pytest.raises(ValueError, match="no calls"):
        collect([], Config())


def test_a_capsule_becomes_two_files(flood: list, tmp_path: Path) -> None:
    """`write_postmortem`, by default and for an incident by the beginning of its id; others are refused by name."""
    path = tmp_path / "run.capsule"
    with CapsuleWriter(path, Config(), clock="virtual", meta={"device": "h100"}) as writer:
        for call in flood:
            writer.append(*call)
    shown = write_postmortem(path, tmp_path / "a.html", tmp_path / "a.md")
    assert shown.incident is not None
    assert "gpuwatch replay run.capsule" in (tmp_path / "a.html").read_text()
    assert "modelled" in (tmp_path / "a.md").read_text()
    write_postmortem(path, None, tmp_path / "b.md", shown.incident.id[:10])
    assert (tmp_path / "b.md").read_text() == (tmp_path / "a.md").read_text()
    with pytest.raises(NoSuchIncidentError, match=shown.incident.id):
        write_postmortem(path, None, tmp_path / "c.md", "nonsense")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CapsuleError, match=r"run\.capsule"):
        write_postmortem(path, None, tmp_path / "c.md")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.md", "b.md", "run.capsule"]


def spans(rows: list[tuple[int, int, float, float]]) -> Spans:
    """Stage spans (request, stage, start, end)."""
    request, stage, start, end = (np.array(column) for column in zip(*rows, strict=True))
    nan = np.full(len(rows), math.nan)
    return Spans(
        ENGINE, "spans", request.astype(np.uint64), stage.astype(np.uint8), start.astype(float), end.astype(float),
        nan, nan, nan, np.zeros(len(rows), np.uint8),
    )  # fmt: skip


def test_time_to_first_token_is_the_first_prefills_end() -> None:
    """A preemption's second prefill does not count, nor does a client's own span that began earlier."""
    log = SpanLog()
    log.add(
        spans([(7, CLIENT, 0, 50), (7, QUEUE, 10, 14), (7, PREFILL, 14, 15), (7, PREFILL, 30, 32), (7, DECODE, 32, 40)])
    )
    at, took = log.first_tokens()
    assert (at.tolist(), took.tolist()) == ([15.0], [5.0])
    (bar,) = log.slowest(0, 100, 5)
    assert [s.stage for s in bar.segments] == ["request", "queue", "prefill", "prefill", "decode"]
    assert (bar.start, bar.end) == (10.0, 40.0)


def test_spans_beyond_the_bound_go_oldest_first_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood keeps the newest."""
    monkeypatch.setattr("gpuwatch.report.request_spans.MOST_SPANS", 3)
    log = SpanLog()
    for i in range(5):
        log.add(spans([(i, QUEUE, i, i + 1)]))
    assert log.cut == 2
    assert log.column("request").tolist() == [2, 3, 4]


def test_requests_in_flight_are_shown_as_far_as_is_known() -> None:
    """Queued: a queue bar that is open. Prefilling: open, stages not known. With tokens already: not a sufferer."""
    n = np.array
    live = LiveRequests(
        ENGINE, 100.0, n([1, 2, 3], np.uint64), n([90.0, 80.0, 70.0]), n([1.0, 2.0, 3.0]), n([10.0, 20.0, math.nan]),
        n([5.0, 5.0, 5.0]), n([0.0, 0.0, 4.0]), n([0.0, 1.0, 2.0]), n([0.0, 0.0, 0.0]),
    )  # fmt: skip
    bars = in_flight(live)
    assert [(b.id[-1], b.segments[0].stage, b.segments[0].open) for b in bars] == [
        ("2", "in flight", True),
        ("1", "queue", True),
    ]


@pytest.mark.parametrize("silent_s", [0, 1, 3])
def test_an_engine_known_only_from_the_snapshot_is_aligned_with_the_record(flood: list, silent_s: int) -> None:
    """A record may begin with a second that names no engine: its curve is as long as the record all the same."""
    pipeline = Pipeline(Config())
    for now, batches in flood[:40]:
        pipeline.step(now, batches)
    assert any(s.engine for s in pipeline.subjects())
    rest = [(now, [] if i < silent_s else batches) for i, (now, batches) in enumerate(flood[40:])]
    report = collect(rest, Config(), pipeline.snapshot())
    running = report.series["req_running"]
    assert len(running.at) == len(running.values) == len(rest)
    assert running.at[-1] == rest[-1][0]
    assert not math.isnan(running.values[-1])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 50)), max_size=60), st.integers(1, 200))
def test_a_trailing_p95_sees_its_span_and_no_more(points: list[tuple[float, float]], now: int) -> None:
    """Equal to numpy's over the points in (now − 30, now]; unknown below three."""
    points.sort()
    at, values = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    (got,) = trailing_p95(at, values, np.array([float(now)]))
    inside = values[(at > now - 30) & (at <= now)]
    assert math.isnan(got) if len(inside) < 3 else got == pytest.approx(np.quantile(inside, 0.95))


def test_a_restarted_histogram_starts_anew() -> None:
    """A count that falls is a new epoch: no difference across it, and none below three requests."""
    ttft = TtftHistogram()

    def reading(at: float, counts: tuple[float, ...], total: float) -> Histogram:
        return Histogram(ENGINE, "page", "ttft_seconds", at, (0.1, 1.0, 10.0), counts, 0.0, total)

    ttft.add(reading(0.0, (0, 0, 0), 0))
    ttft.add(reading(10.0, (0, 100, 100), 100))
    ttft.tick(10.0)
    assert ttft.values[-1] == pytest.approx(0.1 + 0.9 * 0.95)
    ttft.add(reading(20.0, (0, 0, 2), 2))
    ttft.tick(20.0)
    assert math.isnan(ttft.values[-1])


def test_whole_numbers_of_a_record_read_as_such(flood: list) -> None:
    """A seed is 1, not 1.0; text stays as it is."""
    report = collect(flood[:3], Config(), meta={"seed": 1.0, "rate": 0.25, "producer": "x 1.0"})
    assert report.meta == {"seed": "1", "rate": "0.25", "producer": "x 1.0"}
