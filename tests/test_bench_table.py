"""The table of budgets judges honestly: over is over, missing is not measured, and every row can be found."""

import importlib
import math

import pytest

from tests.bench.__main__ import ROWS, measure
from tests.bench.row import Row, table


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (Row("ms", 1.0, 0.9), "ok"),
        (Row("ms", 1.0, 1.1), "over"),
        (Row("×", 300, 299, higher_is_better=True), "over"),
        (Row("×", 300, 301, higher_is_better=True), "ok"),
        (Row("ms", 1.0, 0.5, naive=1.0, ratio_budget=3), "over"),
        (Row("ms", 1.0), "not measured"),
        (Row("ms", 1.0, built=False), "not built yet"),
    ],
)
def test_a_row_is_judged_by_its_budget_and_its_ratio(row: Row, state: str):
    assert row.state == state


def test_the_ratio_is_how_many_times_better_than_the_naive_way():
    assert Row("ms", 1, now=2, naive=10).ratio == 5
    assert Row("spans/s", 1, now=20, naive=10, higher_is_better=True).ratio == 2
    assert math.isnan(Row("ms", 1, now=2).ratio)


def test_the_table_shows_a_gap_where_nothing_was_measured():
    text = table([Row("ms", 1.0, what="a thing"), Row("ms", 1.0, built=False, what="a dream")])
    assert "a thing" in text
    assert "not measured" in text
    assert "not built yet" in text
    assert "0 ms" not in text


@pytest.mark.parametrize(("file", "function"), [row[:2] for row in ROWS], ids=lambda value: str(value))
def test_every_row_has_its_function(file: str, function: str):
    assert callable(getattr(importlib.import_module(f"tests.bench.{file}"), function))


def test_a_measured_row_has_numbers_on_both_sides():
    """No budget is asserted: a busy machine is no fault of the code."""
    row = measure("ring", "written", "step ring")
    assert row.what == "step ring"
    assert row.now > 0
    assert row.naive > 0
