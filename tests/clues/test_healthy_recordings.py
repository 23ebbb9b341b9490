"""Excerpts of worlds in which nothing is wrong, of any length and through any source: short evidence stays silent, too.

Excerpts of worlds in which something is wrong get its class, a neighbour of it as `unknown`, or nothing; never a cure of the
wrong kind.
"""

import pytest

from gpuwatch.clues import judge
from gpuwatch.config import Config
from gpuwatch.model import Incident
from gpuwatch.pipeline import Pipeline
from tests.clues.looks import candidates_of
from tests.rules import worlds

SECONDS = (1, 2, 10, 40)


def excerpt(played: worlds.Played, begin: int, seconds: int) -> tuple[Incident, ...]:
    """The verdict of someone who has only these seconds."""
    calls = played.world.calls[begin : begin + seconds]
    pipeline = Pipeline(Config())
    for now, batches in calls:
        pipeline.step(now, batches)
    return judge(calls, pipeline.verdict(), Config()).incidents


@pytest.mark.parametrize("sees", ["ring", "page"])
@pytest.mark.parametrize("seconds", SECONDS)
def test_an_excerpt_of_steady_load_says_nothing(sees, seconds):
    for begin in (0, 37, 70):
        assert excerpt(worlds.steady(sees), begin, seconds) == ()


@pytest.mark.parametrize("sees", ["ring", "page"])
@pytest.mark.parametrize("seconds", [2, 10, 40])
def test_an_excerpt_of_a_thrashing_batch_is_some_trouble_of_admission(sees, seconds):
    played = worlds.thrashing(sees)
    admission = {
        "batch_thrashing", "head_of_line_blocking", "long_context_kv_pressure", "overload", "admission_deferred",
        "preemption_storm", "max_tokens_over_reservation", "length_shift", "engine_hang", "prefill_decode_interference",
    }  # fmt: skip
    for begin in range(100, len(played.world.calls) - seconds, 37):
        for incident in excerpt(played, begin, seconds):
            assert candidates_of(incident) <= admission
            assert incident.action not in ("restart", "drain_replica", "cordon_node", "scale")
