"""The exposition parser against prometheus_client, and the learned plan against the parser."""

import itertools
import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gpuwatch.wire.exposition import Limits, parse
from gpuwatch.wire.exposition_plan import PageReader

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.txt"))

label_values = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1e300, -1.5, 1e-9])


def table(page):
    return {(s.name, frozenset(s.labels.items())): v for s, v in zip(page.series, page.values, strict=True)}


def oracle(families, said=()):
    """What prometheus_client reads; it renames counters that were `said` without `_total`, which is undone."""
    return {
        (s.name.removesuffix("_total") if said and s.name not in said else s.name, frozenset(s.labels.items())): s.value
        for family in families
        for s in family.samples
    }


def same(mine, theirs):
    assert mine.keys() == theirs.keys()
    assert all(v == theirs[k] or (math.isnan(v) and math.isnan(theirs[k])) for k, v in mine.items())


@st.composite
def registries(draw):
    """A registry with a few metrics of each kind and awkward label values."""
    registry = CollectorRegistry()
    for i in range(draw(st.integers(1, 3))):
        gauge = Gauge(f"g:{i}", 'a\ngauge \\ with "help"', ["a", "b"], registry=registry)
        for values in draw(st.lists(st.tuples(label_values, label_values), max_size=4, unique=True)):
            gauge.labels(*values).set(draw(numbers | st.sampled_from([math.nan, math.inf, -math.inf])))
    counter = Counter("c", "counts", ["reason"], registry=registry)
    for value in draw(st.lists(label_values, max_size=3, unique=True)):
        counter.labels(value).inc(abs(draw(numbers)), exemplar={"trace": "x1"})
    histogram = Histogram("h_seconds", "seconds", registry=registry)
    for value in draw(st.lists(st.floats(0, 100), max_size=5)):
        histogram.observe(value, exemplar={"id": "7"})
    Info("i", "facts", registry=registry).info({"version": draw(label_values)})
    return registry


@given(registries())
@settings(max_examples=60, deadline=None)
def test_classic_text_reads_as_prometheus_client_reads_it(registry):
    text = generate_latest(registry)
    page = parse(text)
    same(table(page), oracle(parse_classic(text.decode())))
    assert (page.dropped, page.cut) == (0, False)


@given(registries())
@settings(max_examples=40, deadline=None)
def test_openmetrics_with_exemplars_reads_as_prometheus_client_reads_it(registry):
    text = generate_openmetrics(registry)
    page = parse(text)
    same(table(page), oracle(parse_openmetrics(text.decode())))
    assert page.dropped == 0


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.name)
def test_captured_pages_read_as_prometheus_client_reads_them(path):
    text = path.read_bytes()
    page = parse(text)
    same(table(page), oracle(parse_classic(text.decode()), page.names))


@given(registries(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_page_cut_anywhere_never_shows_a_wrong_value(registry, data):
    """Half a page may lack series; what it shows is what the whole page shows."""
    text = generate_latest(registry)
    cut = text[: int(len(text) * data.draw(st.floats(0, 1)))]
    whole, half = table(parse(text)), parse(cut)
    assert all(repr(v) == repr(whole[k]) for k, v in table(half).items())
    assert half.cut == (not cut.endswith(b"\n") and bool(cut))


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_garbage_is_counted_and_never_raises(body):
    page = parse(body)
    assert len(page.series) == len(page.values)
    PageReader(None).read(body)


@given(st.lists(registries(), min_size=2, max_size=4))
@settings(max_examples=30, deadline=None)
def test_the_plan_reads_every_page_as_the_parser_does(pages):
    reader = PageReader(None)
    for registry in [*pages, *pages]:
        for text in (generate_latest(registry), generate_openmetrics(registry)):
            reading, page = reader.read(text), parse(text)
            assert reading.series == page.series
            assert list(map(repr, reading.values)) == list(map(repr, page.values))


def test_the_plan_is_used_while_the_layout_stands_and_learned_anew_when_it_moves():
    reader = PageReader({"a", "b"})
    first = reader.read(b'x 1\na{l="1"} 1\nb 2\n')
    second = reader.read(b'x 9\na{l="1"} 5\nb 7.5 1700000000000\n')
    moved = reader.read(b'a{l="1"} 6\nx 1\nb 8\n')
    renamed = reader.read(b'a{l="2"} 6\nx 1\nb 8\n')
    assert (first.relearned, second.relearned, moved.relearned, renamed.relearned) == (True, False, True, True)
    assert second.values == [5.0, 7.5]
    assert moved.values == [6.0, 8.0]
    assert moved.layout == first.layout, "the same series in another place are the same layout"
    assert renamed.layout != first.layout


def test_a_series_that_replaces_an_unwanted_line_is_found_within_the_relearning_period():
    reader = PageReader({"a", "b"}, relearn_after=3)
    reader.read(b"a 1\nx 1\n")
    seen = [len(reader.read(b"a 1\nb 2\n").series) for _ in range(5)]
    assert seen == [1, 1, 1, 2, 2]


def test_an_unreadable_value_is_nan_and_counted_and_the_rest_survives():
    reader = PageReader(None)
    reader.read(b"a 1\nb 2\n")
    bad = reader.read(b"a ERROR - FAILED TO CONVERT\nb 3\n")
    assert math.isnan(bad.values[0])
    assert (bad.values[1], bad.dropped, bad.relearned) == (3.0, 1, False)
    page = parse(b'a 1_000\nb\nc 1 2 3\n{} 1\nd{a=1} 1\ne{a="x",a="y"} 1\ng{a="x"}1\nok 4\n')
    assert {s.name: v for s, v in zip(page.series, page.values, strict=True) if v == v} == {"g": 1.0, "ok": 4.0}
    assert page.dropped == 6


def test_repeated_series_count_once_and_quoted_names_are_names():
    page = parse(b'a{x="1"} 1\na{x="1"} 2\n{"my.name",x="2"} 3\n')
    assert [(s.name, s.labels, v) for s, v in zip(page.series, page.values, strict=True)] == [
        ("a", {"x": "1"}, 1.0),
        ("my.name", {"x": "2"}, 3.0),
    ]
    assert page.dropped == 1


def test_what_exceeds_a_limit_is_cut_and_counted():
    limits = Limits(page_bytes=1000, lines=10, series=3, line_bytes=50, label_bytes=10, labels=2)
    assert parse(b"a 1\n" * 300, None, limits).cut
    many = parse(b"".join(b'a{i="%d"} 1\n' % i for i in range(8)), None, limits)
    assert (len(many.series), many.dropped) == (3, 5)
    odd = parse(b'b{a="1",b="2",c="3"} 1\n' + b"c" * 60 + b" 1\nd 1\n", None, limits)
    assert ([s.name for s in odd.series], odd.dropped) == (["d"], 2)


def test_an_absurdly_long_label_value_is_cut_and_its_series_lives():
    """An engine with a 10 kB model name is watched under a shortened name; each cut is counted."""
    body = b'a{model_name="%s",le="1"} 1\nb{model_name="%s"} 2\nc 3\n' % ((b"x" * 10_000,) * 2)
    page = parse(body)
    assert page.values == [1.0, 2.0, 3.0]
    assert page.series[0].labels == {"model_name": "x" * 1024, "le": "1"}
    assert page.dropped == 2
    reader = PageReader({"a", "b", "c"})
    assert [reader.read(body).values for _ in range(2)] == [[1.0, 2.0, 3.0]] * 2


def test_fifty_megabytes_of_hostile_text_cost_no_more_than_the_limit():
    """Unclosed quotes, endless labels and endless lines are read once and bounded."""
    unit = b'evil{a="' + b'\\"' * 200 + b"\n" + b"x{" + b'l="v",' * 300 + b"\n" + b"y" * 3000 + b"\n"
    body = b"good 1\n" + unit * (50_000_000 // len(unit))
    started = time.process_time()
    reading = PageReader({"good", "evil", "x"}).read(body)
    assert reading.values == [1.0]
    assert reading.cut
    assert time.process_time() - started < 10


def test_nan_and_infinities_are_values():
    page = parse(b"a NaN\nb +Inf\nc -Inf\nd 1e3\n")
    assert list(map(repr, page.values)) == ["nan", "inf", "-inf", "1000.0"]


def test_a_reader_of_one_series_works_as_one_of_many():
    reader = PageReader({"a"})
    assert list(itertools.chain(*(reader.read(b"a %d\n" % i).values for i in range(3)))) == [0.0, 1.0, 2.0]


def test_awkward_exemplars_do_not_reach_the_value():
    page = parse(b'a_total{r="# 9"} 4 # {t="} 5 # \\"x"} 1 1.5\na_bucket{le="1"} 2 1700000000.5 # {} 3\n# EOF\n')
    assert page.values == [4.0, 2.0]
    assert page.dropped == 0
