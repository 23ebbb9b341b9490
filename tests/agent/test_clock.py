"""The agent's time grows whatever the machine's clock does, and a step is an event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.clock import WallClock


class Machine:
    """A machine whose unix clock can be stepped; monotonic time only passes."""

    def __init__(self):
        self.monotonic = 5000.0
        self.offset = 1.764e9

    def clock(self):
        return WallClock(lambda: self.offset + self.monotonic, lambda: self.monotonic)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(-5000, 5000)), max_size=20))
def test_time_grows_through_every_step(steps):
    """No second comes twice, whatever an operator does to the clock."""
    machine = Machine()
    clock = machine.clock()
    before = clock.now()
    for passed, step in steps:
        machine.monotonic += passed
        machine.offset += step
        clock.reanchor("h")
        assert clock.now() >= before + 0.49 * passed
        before = clock.now()


@pytest.mark.parametrize("step", [3600.0, 10.0, -10.0])
def test_a_step_is_an_event_and_is_followed(step):
    """Forward at once, backwards at half speed; drift below half a second is no step."""
    machine = Machine()
    clock = machine.clock()
    machine.offset += 0.3
    assert clock.reanchor("h") is None
    machine.offset += step
    event = clock.reanchor("h")
    assert event is not None
    assert (event.what, event.subject.host) == ("clock", "h")
    assert float(event.detail["step_s"]) == pytest.approx(step, abs=0.31)
    assert clock.reanchor("h") is None
    machine.monotonic += 30.0
    assert clock.now() == pytest.approx(machine.offset + machine.monotonic)
