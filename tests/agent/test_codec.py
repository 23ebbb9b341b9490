"""What is recorded comes back equal to the last bit, and what is rounded is rounded once."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpuwatch import model
from gpuwatch.recording.codec import CodecError, Encoder, decode_calls, pack_block, unpack_block
from gpuwatch.recording.columns import pack, unpack
from gpuwatch.recording.quantize import quantized, round_times, round_values

ANY = st.floats(allow_nan=True, allow_infinity=True)
TEXT = st.text(max_size=8)
SUBJECTS = st.sampled_from(
    [model.Subject(engine="a"), model.Subject(engine="a", rank=1), model.Subject(gpu="GPU-1"), model.Subject(host="h")]
)
NAMES = st.sampled_from([("req_running",), ("req_running", "kv_usage_ratio"), ()])


def floats(n):
    return arrays(np.float64, n, elements=ANY)


@st.composite
def frames(draw):
    names, rows = draw(NAMES), draw(st.integers(0, 4))
    return model.Frame(
        draw(SUBJECTS),
        draw(TEXT),
        names,
        draw(floats(rows)),
        draw(arrays(np.float64, (rows, len(names)), elements=ANY)),
    )


@st.composite
def spans(draw):
    n = draw(st.integers(0, 5))
    codes = arrays(np.uint8, n, elements=st.integers(0, 5))
    return model.Spans(
        draw(SUBJECTS), draw(TEXT), draw(arrays(np.uint64, n)), draw(codes), draw(floats(n)), draw(floats(n)),
        draw(floats(n)), draw(floats(n)), draw(floats(n)), draw(codes),
    )  # fmt: skip


@st.composite
def live_requests(draw):
    n = draw(st.integers(0, 5))
    return model.LiveRequests(
        draw(SUBJECTS), draw(ANY), draw(arrays(np.uint64, n)), *(draw(floats(n)) for _ in range(7))
    )


@st.composite
def histograms(draw):
    bounds = draw(st.lists(st.floats(0, 100), max_size=3).map(tuple))
    cumulative = tuple(draw(ANY) for _ in bounds)
    return model.Histogram(draw(SUBJECTS), draw(TEXT), draw(TEXT), draw(ANY), bounds, cumulative, draw(ANY), draw(ANY))


LABELS = st.dictionaries(TEXT, TEXT, max_size=3)
BATCHES = st.builds(
    model.Batch,
    source=TEXT, role=st.sampled_from(["engine", "steps"]), subject=SUBJECTS, received_at=ANY, took_s=ANY,
    error=st.none() | TEXT,
    frames=st.lists(frames(), max_size=3).map(tuple),
    histograms=st.lists(histograms(), max_size=2).map(tuple),
    spans=st.lists(spans(), max_size=2).map(tuple),
    requests=st.lists(live_requests(), max_size=2).map(tuple),
    open_steps=st.lists(st.builds(model.OpenStep, SUBJECTS, ANY, ANY, ANY, ANY, ANY, ANY), max_size=2).map(tuple),
    events=st.lists(st.builds(model.Event, SUBJECTS, ANY, TEXT, LABELS), max_size=2).map(tuple),
    info=st.lists(st.builds(model.Info, SUBJECTS, ANY, LABELS), max_size=2).map(tuple),
    dropped=st.integers(0, 2**40),
)  # fmt: skip
CALLS = st.lists(st.tuples(ANY, st.lists(BATCHES, max_size=3).map(tuple)), max_size=5)


def same(a, b):
    """Equal by value, with NaN equal to NaN and arrays compared by bits and type."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, model.msgspec.Struct):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__)
    return bool(a == b)


def written(calls):
    encoder = Encoder()
    return [encoder.encode(now, batches) for now, batches in calls]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CALLS)
def test_calls_come_back_equal_from_the_open_journal_and_from_a_block(calls):
    """decode(encode(x)) == x for every batch that can be, in both forms."""
    payloads = written(calls)
    assert same(tuple(decode_calls(payloads)), tuple(calls))
    assert same(tuple(unpack_block(pack_block(payloads))), tuple(calls))


@given(st.integers(0, 40), st.integers(0, 4), st.randoms(use_true_random=False), st.sampled_from("cdnrx"))
def test_columns_come_back_bit_by_bit(rows, width, random, form):
    """Constants, decimals, missing values, repeated words and noise all survive, negative zero and NaN bits included."""
    cell = {
        "c": lambda: 7.0,
        "d": lambda: random.randint(-(10**7), 10**7) / 10 ** random.randint(0, 6),
        "n": lambda: random.choice([math.nan, -0.0, 0.5, math.inf]),
        "r": lambda: random.choice([0.1 + 0.2, 1 / 3]),
        "x": lambda: random.random() * 10.0 ** random.randint(-300, 300),
    }[form]
    table = np.array([[cell() for _ in range(width)] for _ in range(rows)]).reshape(rows, width).view(np.uint64)
    packed = pack(table)
    again, used = unpack(memoryview(packed), rows, width)
    assert used == len(packed)
    assert again.tobytes() == table.tobytes()


@given(arrays(np.float64, 20, elements=ANY))
def test_rounding_twice_changes_nothing_and_keeps_six_digits(values):
    """Rounded values are stable, near, and missing stays missing; whole numbers are exact."""
    once = round_values(values)
    assert round_values(once).tobytes() == once.tobytes()
    assert (np.isnan(once) == np.isnan(values)).all()
    finite = np.isfinite(values)
    exact, kept = values[finite], once[finite]
    assert (np.abs(kept - exact) <= np.maximum(np.abs(exact) * 5.1e-6, 5.1e-13)).all()
    whole = finite & (values == np.rint(values))
    assert (once[whole] == values[whole]).all()


@given(arrays(np.float64, 10, elements=st.floats(1.7e9, 1.8e9)))
def test_times_keep_microseconds(times):
    """A time moves by half a microsecond at most, and rounding is stable."""
    once = round_times(times)
    assert np.abs(once - times).max() <= 0.75e-6
    assert round_times(once).tobytes() == once.tobytes()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CALLS.filter(bool))
def test_a_rounded_call_is_its_own_rounding(calls):
    """What was recorded can be recorded again without a change: a capsule of a replay equals the capsule."""
    now, batches = calls[0]
    once = quantized(now, batches)
    assert same(quantized(*once), once)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_not_believed(data):
    """Neither form raises anything but CodecError."""
    for read in (lambda: list(unpack_block(data)), lambda: list(decode_calls([data]))):
        with pytest.raises(CodecError):
            read()
