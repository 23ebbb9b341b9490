"""The exposition parser against prometheus_client's, on lines that nobody would write: what both read, both read alike.

`GPUWATCH_FUZZ_S=600 python -m pytest tests/test_exposition_fuzz.py` looks on for ten minutes; what it found is kept below.
"""

import math
import os
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gpuwatch.wire.exposition import parse
from gpuwatch.wire.exposition_plan import PageReader

blanks = st.sampled_from(["", "", " ", "\t", "  "])
names = st.sampled_from(["a", "a_total", "vllm:x", "h_bucket", "h_sum", "h_count", "_z9", "q_created"])
keys = st.sampled_from(["l", "le", "engine", "a_b", "quantile"])
texts = st.text(st.sampled_from([*'ab"\\\n{},=# \t', "é", "λ", "\u2028", "\r"]), max_size=8)
numbers = st.sampled_from(
    [
        "0",
        "1",
        "-1.5",
        "+2",
        "1e3",
        "1E-9",
        ".5",
        "5.",
        "NaN",
        "nan",
        "+Inf",
        "-Inf",
        "Inf",
        "inf",
        "007",
        "1e400",
        "infinity",
    ]
) | st.floats().map(repr)
junk = st.sampled_from(["", "x", "0x10", "1,5", "--1", '"1"', "1 2 3", "# 7", "1e", "é"])
stamps = st.sampled_from(["", "", "", " 1700000000000", " 1700000000.123", " -5"])
comments = st.sampled_from(
    ["# HELP a a \\n help", "# TYPE a gauge", "# TYPE a_total counter", "# TYPE h histogram", "# EOF", "#", "# free text",
     "#HELP a", "", "   ", "\t", "# TYPE a_total untyped", "# UNIT a seconds"]
)  # fmt: skip


def escaped(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def labels(draw):
    pairs = draw(st.lists(st.tuples(keys, texts), max_size=3, unique_by=lambda pair: pair[0]))
    if not pairs and draw(st.booleans()):
        return ""
    inside = ",".join(f'{draw(blanks)}{k}{draw(blanks)}={draw(blanks)}"{escaped(v)}"{draw(blanks)}' for k, v in pairs)
    return "{" + inside + (draw(st.sampled_from(["", ","])) if pairs else "") + "}"


@st.composite
def samples(draw):
    value = draw(numbers) if draw(st.integers(0, 9)) else draw(junk)
    head = f"{draw(blanks)}{draw(names)}{draw(labels())}"
    return f"{head}{draw(st.sampled_from([' ', '  ', chr(9)]))}{value}{draw(stamps)}{draw(blanks)}"


pages = st.lists(samples() | comments, min_size=1, max_size=8).map(lambda lines: "\n".join(lines) + "\n")


def table(page):
    return {(s.name, frozenset(s.labels.items())): v for s, v in zip(page.series, page.values, strict=True)}


def theirs(text, parser, said):
    """What prometheus_client reads; None where it refuses the page or a series stands there twice."""
    found = {}
    try:
        for sample in (s for family in parser(text) for s in family.samples):
            name = sample.name if sample.name in said else sample.name.removesuffix("_total")
            key = (name, frozenset(sample.labels.items()))
            if key in found:
                return None
            found[key] = sample.value
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return found


def compare(text):
    page = parse(text.encode())
    mine = table(page)
    assert len(page.series) == len(page.values)
    expected = theirs(text, parse_classic, page.names)
    if expected is not None and page.dropped == 0:
        assert mine.keys() == expected.keys()
        assert all(v == expected[k] or (math.isnan(v) and math.isnan(expected[k])) for k, v in mine.items())
    reader = PageReader(None)
    for _ in range(2):
        reading = reader.read(text.encode())
        assert list(map(repr, reading.values)) == list(map(repr, page.values))
        assert reading.dropped <= page.dropped, "what stands on every page is counted when it is learned"
    return expected


@given(pages)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_prometheus_client_reads_is_read_alike(text):
    compare(text)


def test_a_repeated_line_without_a_number_is_one_loss():
    assert parse(b"a{} x\na{} x\na{} x\n").dropped == 3
    assert parse(b"a 1\na x\n").dropped == 1


@given(pages)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_refused_is_counted(text):
    """A page that prometheus_client refuses costs its bad lines and no other."""
    page = parse(text.encode())
    samples = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    assert len(page.values) + page.dropped >= len(samples) - text.count("\r")
    assert page.dropped <= len(samples) + 1


@pytest.mark.skipif("GPUWATCH_FUZZ_S" not in os.environ, reason="minutes of fuzzing: set GPUWATCH_FUZZ_S")
def test_for_minutes():
    ends, n = time.monotonic() + float(os.environ.get("GPUWATCH_FUZZ_S", "0")), 0
    while time.monotonic() < ends:
        n += 1

        @seed(n)
        @given(pages | st.text(max_size=200))
        @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def look(text):
            compare(text)

        look()
    print(f"{n * 2000} pages")
