"""An engine whose page counts no finished requests and tells no latency, as llama.cpp's: its queue is all there is."""

import numpy as np
import pytest

from gpuwatch.config import Config
from gpuwatch.model import Batch, Frame, Subject
from gpuwatch.pipeline import Pipeline

START, ENGINE = 1_764_000_000, Subject(engine="e")
NAMES = ("req_running", "req_waiting", "generated_tokens_total", "steps_total")


def played(waiting, seconds=120, running=4.0):
    pipeline = Pipeline(Config())
    for now in range(1, seconds + 1):
        at = START + now - 0.5
        values = np.array([[running, waiting(now), 90.0 * now, 30.0 * now]])
        frame = Frame(ENGINE, "page", NAMES, np.array([at]), values)
        tick = pipeline.step(float(START + now), [Batch("page", "engine", ENGINE, at, frames=(frame,))])
    return pipeline.verdict().incidents, tick


def test_a_queue_of_several_batches_that_grows_is_overload_as_sure_as_a_queue_alone_makes_it():
    (found,), tick = played(lambda now: max(0, 8 * (now - 40)))
    assert (found.rule, found.mechanism, found.severity) == ("overload", "batch_full", "ticket")
    assert found.confidence == 0.65
    assert found.onset_at - START == pytest.approx(41, abs=5)
    assert "nan" not in found.summary
    assert "traffic_surge" in {b.rule for b in tick.blind}, "whether arrivals stepped up, nobody can say"


@pytest.mark.parametrize(
    "waiting",
    [lambda now: 0 * now, lambda now: min(now, 6), lambda now: 40 if now % 20 < 10 else 0],
    ids=["none waits", "less than two batches", "it empties again and again"],
)
def test_stays_silent(waiting):
    assert played(waiting)[0] == ()
