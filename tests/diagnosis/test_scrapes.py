"""Several scrapes in one file, and the times that people and programs write."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.diagnose.scrapes import ASSUMED_S, split_scrapes, times_of
from gpuwatch.diagnose.times import point_in_time, span_seconds, unix_seconds


def read(text, ends_at=1000.0):
    scrapes = split_scrapes(text.encode())
    times, assumed = times_of(scrapes, ends_at)
    return [s.body.decode().split("\n")[0] for s in scrapes], times, assumed


def test_a_page_with_remarks_is_one_page():
    text = '# source: somewhere#4514 (2026)\n# TYPE a gauge\na 1\n# a remark\nb{le="+Inf"} 2\n'
    assert read(text) == (["# TYPE a gauge"], [1000.0], False)


def test_a_comment_that_says_a_time_divides():
    assert read("a 1\n# +60 s\na 2\n# +1m30s\na 3\n") == (["a 1", "a 2", "a 3"], [850.0, 910.0, 1000.0], False)
    firsts, times, assumed = read("# 2026-11-29T10:00:00Z\na 1\n# t=1796032860\na 2\n")
    assert (firsts, assumed) == (["a 1", "a 2"], False)
    assert times == [unix_seconds("2026-11-29T10:00:00Z"), 1796032860.0]


def test_a_series_that_comes_again_with_another_value_begins_a_scrape():
    """With the comments before it; equal repeats (time slicing prints them) do not."""
    page = "# HELP a x\na 1\nb 2\n"
    firsts, times, assumed = read(page + "# HELP a x\na 1\nb 3\n")
    assert firsts == ["# HELP a x", "# HELP a x"]
    assert (times, assumed) == ([1000.0 - ASSUMED_S, 1000.0], True)
    assert read(page + page)[0] == ["# HELP a x"]


def test_openmetrics_ends_divide():
    assert read("a 1\n# EOF\na 1\n# EOF\n")[0] == ["a 1", "a 1"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_every_sample_is_in_exactly_one_scrape_and_none_has_two_values(values):
    """Whatever the values are: cutting loses and doubles nothing."""
    text = "".join(f"a {v}\nb {v % 3}\n" for v in values)
    bodies = [s.body.decode().split() for s in split_scrapes(text.encode())]
    assert [word for body in bodies for word in body] == text.split()
    for body in bodies:
        assert len({v for n, v in zip(body[::2], body[1::2], strict=True) if n == "a"}) == 1


def test_times_are_read_as_they_are_written():
    assert unix_seconds("1764000000.25") == 1764000000.25
    assert unix_seconds("1764000000250") == 1764000000.25
    assert unix_seconds("1764000000250000000") == 1764000000.25
    assert unix_seconds("2025-11-24T16:00:00Z") == unix_seconds("2025-11-24 17:00:00+01:00") == 1764000000.0
    assert all(math.isnan(unix_seconds(text)) for text in ("", "12", "nan", "yesterday", "1e300"))
    assert [span_seconds(text) for text in ("90", "60 s", "2h", "1h30m", "250ms")] == [90, 60, 7200, 5400, 0.25]
    assert math.isnan(span_seconds("2 fortnights"))


@pytest.mark.parametrize(
    ("text", "at"), [("now", 5e9), ("-2h", 5e9 - 7200), ("now-15m", 5e9 - 900), ("now - 1h", 5e9 - 3600)]
)
def test_points_in_time_may_be_relative(text, at):
    assert point_in_time(text, 5e9) == at


def test_what_is_no_time_is_refused_with_what_is_understood():
    with pytest.raises(ValueError, match="'soon' is no time: now, -2h"):
        point_in_time("soon", 0.0)
