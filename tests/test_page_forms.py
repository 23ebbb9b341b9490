"""Pages as they come: line ends, the missing one, time stamps, EOF, floods. Small values, exact answers."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sources.page.engine_page import CutPageError, EnginePage
from gpuwatch.wire.exposition import Limits, parse
from gpuwatch.wire.exposition_plan import PageReader

PAGE = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 1\n'


def values(page):
    return {s.name: v for s, v in zip(page.series, page.values, strict=True)}


@pytest.mark.parametrize(
    "form",
    [
        PAGE.replace("\n", "\r\n"),
        PAGE + "# EOF\n",
        PAGE + "# EOF",
        PAGE.replace("\n", " 1700000000000\n"),
        PAGE.replace("\n", " 1700000000.25 # {trace_id=\"a\"} 0.5 1700000000.1\n"),
        "\n\n" + PAGE.replace("\n", "\n\n"),
        "   " + PAGE.replace("\n", "  \n\t# HELP x y\n"),
        PAGE.replace("{", " { ").replace("}", " , }"),
    ],
    ids=["crlf", "eof", "eof-without-line-feed", "milliseconds", "exemplar", "empty-lines", "indented", "loose-braces"],
)  # fmt: skip
def test_the_same_page_in_another_form_is_the_same(form):
    reader = PageReader(None)
    for _ in range(2):
        reading = reader.read(form.encode())
        assert (reading.values, reading.dropped, reading.cut) == ([3.0, 1.0], 0, False)
    assert [s.labels for s in reading.series] == [{"engine": "0"}] * 2


def test_names_in_quotes_and_labels_of_any_alphabet():
    page = parse('{"mémoire.utilisée","größe"="λ\\"x\\\\",b="\\n"} 2\n{"x"} 1\n'.encode())
    assert values(page) == {"mémoire.utilisée": 2, "x": 1}
    assert page.series[0].labels == {"größe": 'λ"x\\', "b": "\n"}


def test_a_page_without_its_last_line_feed_is_cut_unless_it_says_that_it_ends():
    assert parse(PAGE[:-1].encode()).cut
    with pytest.raises(CutPageError):
        EnginePage("e").read(PAGE[:-1].encode(), 1.0)


def test_a_repeated_series_counts_once_and_is_told():
    page = parse((PAGE + PAGE).encode())
    assert (len(page.series), page.dropped) == (2, 2)


def test_infinities_are_values_of_a_series_and_no_reading_of_a_signal():
    page = EnginePage("e")
    report = page.read(PAGE.replace("3", "+Inf").replace(" 1\n", " NaN\n").encode(), 1.0)
    read = dict(zip(report.frames[0].names, report.frames[0].values[0], strict=True))
    assert math.isnan(read["req_running"])
    assert math.isnan(read["req_waiting"])
    assert report.dropped == 1, "an infinity is impossible, not known is not"


def test_a_hundred_thousand_series_cost_what_the_limit_allows():
    """A label that a client chooses: the wanted series are bounded, the rest is counted."""
    body = b"".join(b'vllm:request_success_total{engine="0",finished_reason="%d"} 1\n' % n for n in range(99_990))
    started = time.process_time()
    page = parse(body + PAGE.encode())
    assert len(page.series) == Limits().series
    assert page.dropped == 99_992 - Limits().series
    assert time.process_time() - started < 5


def test_more_lines_than_a_page_may_have_are_no_page():
    body = b"x 1\n" * 100_001 + PAGE.encode()
    assert parse(body, frozenset()).cut
    with pytest.raises(CutPageError):
        EnginePage("e").read(PAGE.encode() + body, 1.0)


@pytest.mark.parametrize("unit", [b"x", b'a{b="', b"{", b"\\", b'"', b" ", b"1 ", b"# ", b',l="v"'], ids=repr)
def test_an_endless_line_is_read_once_and_dropped(unit):
    """Fifty megabytes without a line feed: the page is cut at its limit, in time that grows with it and no faster."""
    body = PAGE.encode() + unit * (50_000_000 // len(unit))
    started = time.process_time()
    page = parse(body, frozenset({"x"}))
    assert page.cut
    assert time.process_time() - started < 1.5


@given(st.sampled_from([b'a{b="', b'a{b="c",', b"a{", b'{"', b'a{b="\\', b"a  ", b"a\t{ "]), st.integers(1000, 16_000))
@settings(max_examples=30, deadline=None)
def test_a_hostile_line_takes_time_in_proportion_to_its_length(unit, length):
    line = (unit * (length // len(unit)))[:length]
    started = time.process_time()
    for _ in range(20):
        parse(line + b"\n")
    assert time.process_time() - started < 1.0
