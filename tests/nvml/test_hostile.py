"""Whatever a driver answers, a look ends, and what it brought is possible: the smallest fakes, and errors at random."""

import ctypes
import math

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.catalog import CATALOG, check_value
from tests.nvml.looking import Looker, readings
from tests.nvml.scripted import Code, ScriptedNvml, hopper

CODES = [2, 3, 4, 6, 9, 10, 13, 15, 16, 17, 18, 21, 25, 27, 28, 999, 123456]
CALLS = sorted({*hopper().answers, "nvmlGpmSampleGet", "nvmlGpmQueryDeviceSupport"})
NUMBERS = st.integers(0, 2**32 - 1)


class Smallest:
    """No UUID, no events, no symbols but the fewest; handles that are another pointer at each enumeration."""

    def __init__(self):
        self.started = 0

    def nvmlInitWithFlags(self, flags):  # noqa: N802
        self.started += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        handle._obj.contents = type(handle._obj)._type_()
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, rates):  # noqa: N802
        rates._obj.gpu, rates._obj.memory = 97, 61
        return 0


def test_the_smallest_library_is_enough(monkeypatch):
    """A device without a name of its own keeps one name over many enumerations, and is never lost."""
    monkeypatch.setattr(pynvml, "nvmlLib", Smallest())
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    looker = Looker()
    for _ in range(130):
        said = looker.look()
        assert said.error is None
        assert not said.events
    assert readings(said, "index-0") == {"gpu_up": 1.0, "gpu_util_ratio": 0.97, "gpu_memory_busy_ratio": 0.61}
    looker.close()


def possible(said):
    """Every reading is of the catalogue and within its bounds, and no series is told twice in a look."""
    seen = set()
    for frame in said.frames:
        for name, value in zip(frame.names, frame.values[0], strict=True):
            assert (frame.subject, frame.source, name) not in seen
            seen.add((frame.subject, frame.source, name))
            assert name in CATALOG
            assert math.isfinite(value)
            assert check_value(name, value)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(CALLS), st.sampled_from(CODES).map(Code), max_size=6),
            st.dictionaries(
                st.sampled_from([74, 76, 82, 197, 230, 269, 270, 271]), NUMBERS | st.sampled_from(CODES).map(Code)
            ),
            st.sampled_from([0, 0, 0, 0, 15, 16, 999]),
            st.sampled_from([0, 0, 0, 9, 18, 999]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_errors_at_random_never_end_a_look(script, monkeypatch):
    """Any call of either device may fail with any code at any time, and the driver may go and come."""
    one, two = hopper("GPU-a"), hopper("GPU-b")
    usual, fields = dict(one.answers), dict(one.fields)
    nvml = ScriptedNvml(one, two).install(monkeypatch)
    looker = Looker()
    for errors, counters, lost, start, reloaded in script:
        one.answers, one.fields = usual | errors, fields | counters
        two.lost, nvml.start = lost, start
        if reloaded:
            nvml.started = 0
        possible(looker.look())
    one.answers, one.fields, two.lost, nvml.start = usual, fields, 0, 0
    for _ in range(40):
        said = looker.look()
        possible(said)
    assert said.error is None
    assert readings(said, "GPU-a")["gpu_up"] == readings(said, "GPU-b")["gpu_up"] == 1.0
    looker.close()


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
def test_any_number_is_a_reading_or_none(value, monkeypatch):
    gpu = hopper()
    gpu.answers = {
        call: value if isinstance(answer, int) else answer for call, answer in gpu.answers.items()
    } | {"nvmlDeviceGetUtilizationRates": (value, value), "nvmlDeviceGetRemappedRows": (value,) * 4}  # fmt: skip
    ScriptedNvml(gpu).install(monkeypatch)
    looker = Looker()
    for _ in range(12):
        possible(looker.look())
    looker.close()


def test_a_handle_is_an_address():
    """What identifies a device in an event is where its handle points, not the pointer object."""
    from gpuwatch.sources.gpu.nvml.xid import address

    buffer = ctypes.create_string_buffer(8)
    one, two = (ctypes.cast(ctypes.addressof(buffer), ctypes.c_void_p) for _ in range(2))
    assert address(one) == address(two) == ctypes.addressof(buffer)
    assert address(None) == 0
