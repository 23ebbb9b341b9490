"""What is remembered of a subject: sources apart, histograms through restarts, requests, failures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.memory.history import KEEP_S, HistogramSeries, History
from gpuwatch.model import Batch, Event, Frame, Histogram, Info, Missing, OpenStep, Subject
from gpuwatch.testing import START, World, window

ENGINE = Subject(engine="shim")
BOUNDS = (0.1, 1.0)


def histogram(at: float, below: float, between: float, above: float, total: float) -> Histogram:
    count = below + between + above
    return Histogram(ENGINE, "page", "ttft_seconds", at, BOUNDS, (below, below + between), total, count)


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3, st.booleans()), min_size=2, max_size=30))
def test_histograms_count_what_happened_through_restarts(steps):
    """Any two snapshots differ by what was observed between them; a restart forgets nothing that was shown."""
    series = HistogramSeries(BOUNDS)
    shown, true = np.zeros(3), []
    happened = np.zeros(3)
    for k, (*added, restart) in enumerate(steps):
        if restart and shown.sum() > sum(added):
            shown = np.zeros(3)
        shown = shown + added
        happened = happened + added
        true.append(happened.copy())
        series.add(histogram(START + k, *shown, total=float(shown @ [0.05, 0.5, 2.0])))
    counts, total, span_s = series.delta(START, START + len(steps))
    expected = true[-1] - true[0]
    np.testing.assert_allclose(counts, expected)
    assert total == pytest.approx(float(expected @ [0.05, 0.5, 2.0]))
    assert span_s == len(steps) - 1


def test_one_snapshot_is_no_difference():
    series = HistogramSeries(BOUNDS)
    series.add(histogram(START, 1, 1, 1, 3.0))
    assert series.delta(START - 10, START + 10) is None


def test_an_upgrade_that_changes_the_buckets_begins_anew():
    history = History(ENGINE)
    history.ingest(Batch("page", "engine", ENGINE, START, histograms=(histogram(START, 5, 5, 5, 9.0),)))
    other = Histogram(ENGINE, "page", "ttft_seconds", START + 1, (0.5,), (3.0,), 1.0, 4.0)
    history.ingest(Batch("page", "engine", ENGINE, START + 1, histograms=(other,)))
    assert history.histograms["page", "ttft_seconds"].bounds == (0.5,)
    assert len(history.histograms["page", "ttft_seconds"].points) == 1


def test_snapshots_of_histograms_are_bounded():
    series = HistogramSeries(BOUNDS)
    for k in range(3000):
        series.add(histogram(START + k, k, 0, 0, 0.0))
    assert series.points[0][0] >= START + 2999 - KEEP_S


def one(source: str, at: float, value: float) -> Batch:
    frame = Frame(ENGINE, source, ("req_running",), np.array([at]), np.array([[value]]))
    return Batch(source, "engine", ENGINE, at, frames=(frame,))


def test_sources_never_interleave_and_the_best_answers_first():
    """While the ring is fresh it speaks; when it goes quiet, the page does, and neither's values mix into the other's."""
    world = World()
    world.run(20, req_running=10.0)
    history = world.pipeline.memory[ENGINE.key]
    for k in range(30):
        history.ingest(one("page", START + k + 0.5, 99.0))
    history.advance(START + 20)
    assert world.window().level("req_running") == 10.0
    assert history.sources("req_running") == ("steps", "page")
    world.fail("steps")
    world.run(9)
    assert world.window().level("req_running") == 99.0
    assert world.window().source("req_running") == "page"


def test_a_failed_poll_is_remembered_until_the_next_good_one():
    history = History(ENGINE)
    history.ingest(Batch("page", "engine", ENGINE, START, error="refused"))
    history.ingest(Batch("page", "engine", ENGINE, START + 5, error="refused"))
    assert history.error_since == {"engine": START}
    assert math.isnan(history.seen_at)
    history.ingest(one("page", START + 6, 1.0))
    assert history.error_since == {}


def test_what_others_say_is_not_taken():
    history = History(Subject(engine="other"))
    history.ingest(one("page", START, 1.0))
    assert history.tiers == {}


def test_a_ring_without_a_step_in_progress_says_so():
    history = History(ENGINE)
    step = OpenStep(ENGINE, START, START - 1, 100.0, 0.0, 3.0, 4.0)
    history.ingest(Batch("steps", "steps", ENGINE, START, open_steps=(step,)))
    assert history.open_step == step
    history.advance(START + 1)
    assert history.tiers["steps"].span("req_waiting", START + 1, 1).tolist() == [4.0]
    history.ingest(Batch("steps", "steps", ENGINE, START + 1))
    assert history.open_step is None


def test_what_an_engine_says_and_what_happens_to_it_is_bounded():
    history = History(ENGINE)
    events = tuple(Event(ENGINE, START + k, "change", {"what": str(k)}) for k in range(2000))
    info = Info(ENGINE, START, {f"k{i}" * 40: "v" * 1000 for i in range(500)})
    history.ingest(Batch("changes", "changes", ENGINE, START, events=events, info=(info,)))
    assert len(history.events) == 500
    assert history.events[-1].detail == {"what": "1999"}
    assert len(history.info) <= 64
    assert max(map(len, history.info.values())) <= 256
    assert max(map(len, history.info)) <= 64


# --- the question box ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (lambda w: w.level("kv_usage_ratio"), "kv_usage_ratio"),
        (lambda w: w.mean("req_waiting", 60), "req_waiting"),
        (lambda w: w.rate("req_finished_total", 60), "req_finished_total"),
        (lambda w: w.observed_quantile("ttft_seconds", 0.5, 60), "ttft_seconds"),
        (lambda w: w.finished(60), "spans"),
        (lambda w: w.live, "live_requests"),
        (lambda w: w.gpu_mean("gpu_dram_active_ratio", 10), "gpu_dram_active_ratio"),
        (lambda w: w.limit("max_num_seqs"), "max_num_seqs"),
        (lambda w: w.age("steps_total"), "steps_total"),
    ],
)
def test_a_window_refuses_what_was_never_seen(ask, names):
    """Missing is not zero: the refusal names the signal."""
    with pytest.raises(Missing) as refused:
        ask(window(req_running=[1.0] * 60))
    assert refused.value.signal == names


def test_a_window_refuses_thin_data_and_says_how_thin():
    known = [1.0] * 20 + [math.nan] * 40
    w = window(req_running=[*reversed(known)])
    assert w.mean("req_running", 20) == 1.0
    with pytest.raises(Missing, match="fewer than 50%"):
        w.mean("req_running", 60)
    assert w.coverage("req_running", 60) == pytest.approx(1 / 3, abs=0.05)
    assert w.coverage("req_waiting", 60) == 0.0


def test_a_stale_signal_is_refused_though_its_past_is_known():
    w = window(req_running=[5.0] * 30 + [math.nan] * 30)
    with pytest.raises(Missing, match="stale"):
        w.level("req_running")
    assert not w.has("req_running")


def test_a_question_is_asked_once_a_tick_and_its_refusal_remembered():
    asked = []

    def question(w):
        asked.append(w)
        raise Missing("x", "no")

    w = window(req_running=[1.0] * 10)
    for _ in range(3):
        with pytest.raises(Missing):
            w.once(question)
        assert w.maybe(question) is None
    assert len(asked) == 1


def test_statistics_are_of_readings_and_time():
    w = window(req_running=np.arange(60.0), req_finished_total=[2.0] * 60)
    assert w.level("req_running") == 59
    assert w.mean("req_running", 10) == pytest.approx(54.5)
    assert (w.least("req_running", 10), w.greatest("req_running", 10)) == (50, 59)
    assert w.slope("req_running", 30) == pytest.approx(1.0)
    assert w.rate("req_finished_total", 30) == pytest.approx(2.0)
    assert np.nansum(w.increments("req_finished_total", 30)) == pytest.approx(60.0)


def test_a_limit_comes_from_a_signal_or_from_what_the_engine_says():
    assert window(info={"max_num_seqs": "64"}, req_running=[1.0] * 5).limit("max_num_seqs") == 64
    assert window(max_num_seqs=[32.0] * 5).limit("max_num_seqs") == 32
    with pytest.raises(Missing):
        window(info={"max_num_seqs": "auto"}, req_running=[1.0] * 5).limit("max_num_seqs")


def test_devices_are_averaged_over_those_that_answer():
    world = World(gpu="GPU-1")
    world.run(30, req_running=1.0, gpu_dram_active_ratio=0.7)
    assert world.window().gpu_mean("gpu_dram_active_ratio", 10) == pytest.approx(0.7)
    world.fail("gpu")
    world.run(60)
    with pytest.raises(Missing):
        world.window().gpu_mean("gpu_dram_active_ratio", 10)
