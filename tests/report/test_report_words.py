"""Numbers, units, times, axes and character plots as people read them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.report.scales import decimate, time_ticks, value_ticks
from gpuwatch.report.spark import sparkline
from gpuwatch.report.words import duration, percent, plain, quantity, readable, since, unit_of, utc

QUANTITIES = {
    "ratio": (0.041, "ratio", "4.1 %"),
    "almost all is not all": (0.9996, "ratio", "> 99.9 %"),
    "milliseconds": (0.031, "seconds", "31 ms"),
    "seconds": (24.62, "seconds", "24.6 s"),
    "minutes": (200.0, "seconds", "3 min 20 s"),
    "hours": (7500.0, "seconds", "2 h 5 min"),
    "bytes": (80e9, "bytes", "80 GB"),
    "tokens": (130000.0, "tokens", "130,000 tokens"),
    "rate": (5.02, "per_second", "5.02/s"),
    "unknown is not zero": (math.nan, "seconds", "–"),
    "none is not zero": (None, "ratio", "–"),
    "a mode": ("no blocks", "", "no blocks"),
    "tiny": (0.000012, "", "0.000012"),
}


@pytest.mark.parametrize("case", QUANTITIES)
def test_a_quantity_reads_with_its_unit(case: str) -> None:
    """Base unit in, text with a fitting unit out."""
    value, unit, text = QUANTITIES[case]
    assert quantity(value, unit) == text


@settings(deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_number_breaks_the_words(value: float) -> None:
    """Any float can be said in any unit, in one short line."""
    for say in (plain, percent, duration, lambda v: quantity(v, "bytes")):
        assert "\n" not in say(value)
    assert (plain(value) == "–") == math.isnan(value)


def test_units_come_from_the_catalogue_or_the_suffix() -> None:
    """A derived signal's suffix says its unit; a name that says nothing has none."""
    assert unit_of("kv_usage_ratio") == "ratio"
    assert unit_of("cycle_period_s") == "seconds"
    assert unit_of("arrivals_per_s") == "per_second"
    assert unit_of("cycles") == ""


def test_times_are_said_absolutely_and_relatively() -> None:
    """UTC, and with a sign."""
    assert utc(1_764_000_062.4) == "16:01:02 UTC"
    assert since(130.0, 100.0) == "+30 s"
    assert since(58.0, 100.0) == "−42 s"
    assert since(100.2, 100.0) == "±0 s"
    assert readable("kv_usage_ratio") == "KV usage ratio"


@settings(deadline=None)
@given(st.floats(min_value=1e-6, max_value=1e12))
def test_value_ticks_are_few_round_and_cover_the_peak(high: float) -> None:
    """From zero to at least the peak, evenly, with at most six steps."""
    ticks = value_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * 0.999
    assert 2 <= len(ticks) <= 7
    assert np.allclose(np.diff(ticks), ticks[1])


@settings(deadline=None)
@given(st.floats(min_value=1.0, max_value=6 * 86400.0))
def test_time_ticks_lie_inside_and_are_few(span_s: float) -> None:
    """Round times within the axis, at most nine."""
    start = 1_764_000_000.0
    ticks = time_ticks(start, start + span_s)
    assert all(start <= at <= start + span_s for at, _ in ticks)
    assert len(ticks) <= 9


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(-1e9, 1e9), st.just(math.nan)), min_size=1, max_size=5000), st.integers(5, 300))
def test_decimation_keeps_extremes_and_order(values: list[float], columns: int) -> None:
    """The least and the greatest value survive, times ascend, and the size is bounded."""
    raw, at = np.array(values), np.arange(len(values), dtype=float)
    t, v = decimate(at, raw, columns)
    assert len(t) <= max(2 * columns, 3 * columns)
    assert np.all(np.diff(t) > 0)
    if np.any(~np.isnan(raw)):
        assert np.nanmin(v) == np.nanmin(raw)
        assert np.nanmax(v) == np.nanmax(raw)
    if len(raw) > 2 * columns and np.isnan(raw).any():
        assert np.isnan(v).any(), "a gap must stay a gap"


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), max_size=400), st.integers(0, 200))
def test_a_sparkline_fits_and_never_draws_the_unknown(values: list[float], width: int) -> None:
    """Never wider than asked; a column without a value is a space; the peak is a full bar."""
    line = sparkline(values, width)
    assert len(line) <= width
    known = [v for v in values if not math.isnan(v)]
    if width and known and max(known) > 0:
        assert "█" in line
    if width >= len(values):
        assert [c == " " for c in line] == [math.isnan(v) for v in values]
