"""The one-second grid answers what a plain list of readings would, however they were cut into blocks."""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.memory.tiers import CELLS, GREATEST, LAST, LEAST, MEAN, Tier

START = 1_764_000_000
HOLD_S = 2.0
"""What a cadence of at most 2/3 s gives."""
GAUGES = np.zeros(2, bool)


class Reading(NamedTuple):
    at: float
    value: float


def cell_of(readings: list[Reading], k: int, kind: int) -> float:
    """What cell k should hold: its own readings, else the last value as long as it is fresh to the cell's end."""
    inside = [r.value for r in readings if k <= r.at < k + 1]
    if inside:
        return {LAST: inside[-1], MEAN: sum(inside) / len(inside), LEAST: min(inside), GREATEST: max(inside)}[kind]
    before = [r for r in readings if r.at < k]
    return before[-1].value if before and k + 1 - before[-1].at <= HOLD_S else math.nan


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[list[float], list[list[float]]]]:
    """Polls of two signals: up to four rows each, some NaN, now and then an outage of many seconds."""
    sixteenths = 0  # exact in binary, so that cuts between cells are exact too
    out = []
    for _ in range(draw(st.integers(2, 25))):
        at = []
        for _ in range(draw(st.integers(1, 4))):
            sixteenths += draw(st.sampled_from([1, 2]))
            at.append(START + sixteenths / 16)
        values = [[draw(st.sampled_from([0.0, 1.0, 2.5, -3.0, math.nan])) for _ in range(2)] for _ in at]
        out.append((at, values))
        if draw(st.integers(0, 9)) == 0:
            sixteenths += draw(st.integers(80, 300))
    return out


def tier_with_a_rhythm() -> tuple[Tier, list[list[Reading]]]:
    """A tier that has learned a cadence of half a second."""
    tier = Tier()
    told: list[list[Reading]] = [[], []]
    for at in (START - 1.0, START - 0.5):
        tier.write(("a", "b"), np.array([at]), np.array([[1.0, 2.0]]), GAUGES)
        for signal, value in zip(told, (1.0, 2.0), strict=True):
            signal.append(Reading(at, value))
    return tier, told


@settings(max_examples=60, deadline=None)
@given(blocks(), st.booleans())
def test_a_grid_answers_like_a_list_of_readings(polls, advance_each_second):
    tier, told = tier_with_a_rhythm()
    for at, values in polls:
        if advance_each_second:
            tier.advance(at[0])
        tier.write(("a", "b"), np.array(at), np.array(values), GAUGES)
        for j, signal in enumerate(told):
            signal += [Reading(t, row[j]) for t, row in zip(at, values, strict=True) if not math.isnan(row[j])]
    now = math.floor(polls[-1][0][-1]) + 1
    tier.advance(now)
    assert tier.hold_s == HOLD_S
    for name, readings in zip("ab", told, strict=True):
        for kind in (LAST, MEAN, LEAST, GREATEST):
            expected = [cell_of(readings, k, kind) for k in range(now - 90, now)]
            np.testing.assert_allclose(tier.span(name, now, 90, kind), expected, err_msg=f"{name} {kind}")


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40), st.integers(1, 5))
def test_a_counter_goes_on_through_resets(steps, block):
    """The increase over any span is what happened, restarts or not; and a restart costs what came before its first look."""
    tier, raw, true, total = Tier(), 0.0, 0.0, []
    shown = []
    for add, restart in steps:
        raw = (0.0 if restart else raw) + add
        if shown and raw < shown[-1]:
            true += raw
        else:
            true += raw - (shown[-1] if shown else 0.0)
        shown.append(raw)
        total.append(true)
    for i in range(0, len(shown), block):
        rows = np.array(shown[i : i + block])
        at = START + np.arange(i, i + len(rows)) + 0.5
        tier.write(("n",), at, rows[:, None], np.ones(1, bool))
    got = tier.span("n", START + len(shown), len(shown))
    np.testing.assert_allclose(got - got[0], np.array(total) - total[0])
    assert tier.resets == sum(b < a for a, b in pairwise(shown))


def test_two_polls_within_a_second_share_its_cell():
    """The peak of the first poll is not forgotten when the second one comes."""
    tier = Tier()
    tier.write(("a",), START + np.array([0.1, 0.3]), np.array([[9.0], [1.0]]), np.zeros(1, bool))
    tier.write(("a",), START + np.array([0.7, 0.9]), np.array([[2.0], [4.0]]), np.zeros(1, bool))
    assert [float(tier.span("a", START + 1, 1, kind)[0]) for kind in (LAST, MEAN, LEAST, GREATEST)] == [4, 4, 1, 9]


def test_a_signal_that_is_polled_rarely_stands_while_others_are_written():
    """Two lanes write one source's tier: the slow one's values hold through the fast one's seconds."""
    tier = Tier()
    for k in range(8):
        tier.write(("fast",), np.array([START + k + 0.2]), np.array([[k]]), np.zeros(1, bool))
        if k % 2 == 0:
            tier.write(("slow",), np.array([START + k + 0.3]), np.array([[10.0 + k]]), np.zeros(1, bool))
    tier.advance(START + 8)
    assert tier.span("slow", START + 8, 8).tolist() == [10, 10, 12, 12, 14, 14, 16, 16]


def test_what_comes_late_is_cut_and_counted():
    """A reading older than the newest of its signal changes nothing: not the level, and no counter restarts."""
    tier = Tier()
    counter = np.ones(1, bool)
    for k in range(5):
        tier.write(("n",), np.array([START + k + 0.5]), np.array([[100.0 * k]]), counter)
    tier.write(("n",), np.array([START + 2.7]), np.array([[150.0]]), counter)
    tier.advance(START + 5)
    assert tier.span("n", START + 5, 5).tolist() == [0, 100, 200, 300, 400]
    assert (tier.late, tier.resets) == (1, 0)


def test_the_grid_keeps_fifteen_minutes_and_no_more():
    tier = Tier()
    at = START + np.arange(2 * CELLS) + 0.5
    tier.write(("a",), at, np.arange(2.0 * CELLS)[:, None], np.zeros(1, bool))
    assert tier.late == CELLS
    seen = tier.span("a", START + 2 * CELLS, 2 * CELLS)
    assert len(seen) == CELLS
    assert seen[0] == CELLS
    assert tier.cells.shape == (1, 4, CELLS)


def test_silence_is_not_a_slow_rhythm():
    """After an outage, the cadence is the one from before, so that a dead source is not held for long."""
    tier = Tier()
    for k in range(10):
        tier.write(("a",), np.array([START + k + 0.5]), np.array([[1.0]]), np.zeros(1, bool))
    tier.write(("a",), np.array([START + 200.5]), np.array([[1.0]]), np.zeros(1, bool))
    assert 0.9 < tier.cadence_s < 1.1
    tier.advance(START + 230)
    assert np.isnan(tier.span("a", START + 230, 20)).all()
    assert np.isnan(tier.span("a", START + 200, 180)).all()


def test_a_frozen_gauge_knows_how_long_it_has_not_moved():
    tier = Tier()
    for k in range(10):
        tier.write(("a",), np.array([START + k + 0.5]), np.array([[3.0 if k > 2 else k]]), np.zeros(1, bool))
    assert tier.moved_at[tier.row["a"]] == START + 3.5
    assert tier.held_at[tier.row["a"]] == START + 9.5


def test_when_a_value_came_is_known_within_a_block():
    tier = Tier()
    values = np.array([[1.0, 5.0], [2.0, 5.0], [2.0, 5.0], [2.0, 7.0]])
    tier.write(("a", "b"), START + np.arange(4.0), values, GAUGES)
    assert tier.moved_at.tolist() == [START + 1, START + 3]
    tier.write(("a", "b"), START + np.array([4.0, 5.0]), np.array([[9.0, 7.0], [9.0, 7.0]]), GAUGES)
    assert tier.moved_at.tolist() == [START + 4, START + 3]
