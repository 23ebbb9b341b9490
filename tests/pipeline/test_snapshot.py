"""A snapshot may come from a stranger: only its own classes are ever made, and nothing is executed."""

import math
from collections import deque

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.memory import snapshot
from gpuwatch.memory.snapshot import SnapshotError
from gpuwatch.model import Event, Subject
from gpuwatch.pipeline import Pipeline

CLASSES = {"Subject": Subject, "Event": Event}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_as_they_were(value):
    assert snapshot.decode(snapshot.encode(value, {}), {}) == value


def test_arrays_queues_and_structs_come_back_as_they_were():
    state = {
        ("a", 1): deque([1.5, math.inf], maxlen=3),
        "array": np.array([[1.0, math.nan], [2.0, -0.0]]),
        "ids": np.array([2**64 - 1], np.uint64),
        "event": Event(Subject(engine="e"), 1.0, "change", {"what": "x"}),
    }
    back = snapshot.decode(snapshot.encode(state, CLASSES), CLASSES)
    assert back["a", 1] == deque([1.5, math.inf])
    assert back["a", 1].maxlen == 3
    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["ids"].dtype == np.uint64
    assert back["event"] == state["event"]
    back["array"][0, 0] = 7.0  # arrays that cannot be written would break the next tick


def wrapped(state: object) -> bytes:
    return msgspec.msgpack.encode({"snapshot": snapshot.FORMAT, "state": state})


HOSTILE = {
    "no msgpack": b"\xc1\xff\x00",
    "not a snapshot": msgspec.msgpack.encode([1, 2, 3]),
    "another format": msgspec.msgpack.encode({"snapshot": 999, "state": None}),
    "no state": msgspec.msgpack.encode({"snapshot": snapshot.FORMAT}),
    "a foreign class": wrapped(["object", "os.system", [["command", "id"]]]),
    "a class of ours that is no state": wrapped(["object", "Pipeline", []]),
    "an array of objects": wrapped(["array", "|O", [1], b"\0" * 8]),
    "an array of structs": wrapped(["array", "<f8,<f8", [1], b"\0" * 16]),
    "an array that claims more than it has": wrapped(["array", "<f8", [10**9], b"\0" * 8]),
    "a negative shape": wrapped(["array", "<f8", [-2, -1], b"\0" * 8]),
    "an unknown tag": wrapped(["eval", "1+1"]),
    "an empty list": wrapped([]),
    "a struct without its fields": wrapped(["object", "Event", [["at", 1.0]]]),
    "a struct with a foreign field": wrapped(["object", "Subject", [["__class__", "x"]]]),
    "a dict with an unhashable key": wrapped(["dict", [[["list", []], 1]]]),
    "nested deeper than any state": wrapped(None)[:-1] + b"\x91" * 100_000 + b"\xc0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(SnapshotError):
        snapshot.decode(data, CLASSES)
    with pytest.raises(SnapshotError):
        Pipeline.restore(None, data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_a_snapshot_error(data):
    try:
        snapshot.decode(data, CLASSES)
    except SnapshotError:
        return


@pytest.mark.parametrize(
    "state",
    [
        ["list", []],
        ["dict", [["_judged", ["dict", []]]]],
        ["dict", [["memory", 5]]],
        ["dict", [["step", 5]]],
        ["dict", [["rules", ["dict", []]]]],
        ["dict", [["memory", ["dict", [["engine/e/0", 5]]]]]],
    ],
    ids=[
        "no dict",
        "a private part",
        "a memory that is a number",
        "a method",
        "the rules",
        "a history that is a number",
    ],
)
def test_a_state_that_is_none_of_a_pipeline_is_refused(state):
    """What is restored are the parts of a state and nothing else: no rule, no method, no foreign type."""
    with pytest.raises(SnapshotError):
        Pipeline.restore(None, wrapped(state))


def test_what_is_no_state_is_not_written():
    with pytest.raises(TypeError, match="object"):
        snapshot.encode({"x": object()}, CLASSES)


def test_no_bytes_are_a_fresh_pipeline():
    assert Pipeline.restore(None, b"").subjects() == ()
