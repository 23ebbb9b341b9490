"""Looks ten or fifteen seconds apart: what counters rise between them, and the grid on which they are called."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.diagnose.material import SILENCE_S, calls
from gpuwatch.model import Batch, Subject
from gpuwatch.stats import spread

SUBJECT = Subject(engine="e")


def items(*times):
    return [(t, Batch("s", "engine", SUBJECT, t)) for t in times]


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 7.0, 30.0, float("nan")]), max_size=60), st.integers(1, 30))
def test_spreading_invents_and_loses_nothing(rises, pace_s):
    """The sum stays, nothing falls below zero, and what is not known stays unknown."""
    out = spread(np.array(rises), pace_s)
    assert np.isclose(np.nansum(out), np.nansum(rises))
    assert not (out < 0).any()
    assert (np.isnan(out) == np.isnan(rises)).all()


def test_a_rise_is_spread_over_the_time_that_it_covers():
    assert spread(np.array([0.0, 0.0, 9.0, 0.0, 0.0, 3.0]), 3).tolist() == [3, 3, 3, 1, 1, 1]


def test_every_second_is_called_and_nothing_before_it_came():
    told = [(now, len(batches)) for now, batches in calls(items(100.2, 103.0, 103.5))]
    assert told == [(101, 1), (102, 0), (103, 1), (104, 1), (105, 0)]


def test_a_silence_longer_than_memory_is_stepped_over():
    told = [now for now, _ in calls(items(100.0, 1_000_000.0))]
    assert len(told) < SILENCE_S + 5
    assert told[-2:] == [1_000_000.0, 1_000_001.0]
    assert told == sorted(told)


@given(st.lists(st.floats(1e9, 1e9 + 5000), min_size=1, max_size=30))
def test_every_batch_is_called_once_and_never_before_its_time(times):
    told = list(calls(items(*times)))
    assert sorted(b.received_at for _, batches in told for b in batches) == sorted(times)
    assert all(b.received_at <= now + 1e-5 for now, batches in told for b in batches)
    assert all(a < b for (a, _), (b, _) in itertools.pairwise(told))
