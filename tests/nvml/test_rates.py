"""How often the driver is asked: its lock is the price, so these counts are promises."""

import pytest

from gpuwatch.config import ConfigError, parse
from gpuwatch.sources.gpu.devices import device_sources
from gpuwatch.sources.gpu.pace import Rates
from tests.nvml.looking import Looker
from tests.nvml.scripted import hopper
from tests.sources.stub_server import HandClock


def fleet(install, **more):
    return install(*(hopper(f"GPU-{i}") for i in range(8)), **more)


def run(looker: Looker, seconds: int, hertz: int) -> None:
    for _ in range(seconds * hertz):
        looker.look(1 / hertz)


@pytest.mark.parametrize("hertz", [1, 5, 10])
def test_utilisation_is_asked_at_most_five_times_a_second(install, hertz):
    nvml, looker = fleet(install, hertz=hertz, rates=Rates(usage_hz=100.0))
    run(looker, 20, hertz)
    assert nvml.calls["nvmlDeviceGetUtilizationRates"] <= 8 * (5 * 20 + 1)


@pytest.mark.parametrize("hertz", [1, 10])
def test_process_lists_are_asked_at_most_every_ten_seconds(install, hertz):
    nvml, looker = fleet(install, hertz=hertz, rates=Rates(processes_every_s=0.1))
    run(looker, 60, hertz)
    assert nvml.calls["nvmlDeviceGetComputeRunningProcesses_v3"] <= 8 * 2 * 7  # each list is two calls of the binding


def test_devices_do_not_queue_up_in_one_second(install):
    """After the first time, lists of eight devices are spread over the period."""
    nvml, looker = fleet(install)
    looker.look()
    most, before = 0, nvml.calls["nvmlDeviceGetComputeRunningProcesses_v3"]
    for _ in range(40):
        looker.look()
        now = nvml.calls["nvmlDeviceGetComputeRunningProcesses_v3"]
        most, before = max(most, now - before), now
    assert 2 <= most <= 4


def test_what_changes_by_the_minute_is_asked_every_ten_seconds(install):
    nvml, looker = fleet(install)
    run(looker, 100, 1)
    assert nvml.calls["nvmlDeviceGetRemappedRows"] <= 8 * 11
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 8 * 100


def test_the_call_that_blocks_for_twenty_milliseconds_is_never_made(install):
    nvml, looker = fleet(install)
    run(looker, 30, 1)
    assert not nvml.calls["nvmlDeviceGetPcieThroughput"]


def test_a_usual_second_of_eight_devices_is_less_than_a_hundred_calls(install):
    nvml, looker = fleet(install)
    run(looker, 30, 1)
    before = sum(nvml.calls.values())
    run(looker, 60, 1)
    assert (sum(nvml.calls.values()) - before) / 60 < 100


@pytest.mark.parametrize(
    ("key", "value"),
    [("usage_hz", 6), ("usage_hz", 0.1), ("processes_every_s", 5), ("slow_every_s", 0), ("nvml", "on")],
)
def test_a_configuration_cannot_ask_more_than_the_driver_can_bear(key, value):
    with pytest.raises(ConfigError, match=f"gpu.{key}"):
        parse({"gpu": {key: value}})


def test_drivers_are_asked_as_configured():
    none = parse({"gpu": {"nvml": False, "amd": False, "intel": False}}).gpu
    every = parse({"gpu": {"nvml": True, "amd": True, "intel": True}}).gpu
    clock = HandClock()
    assert device_sources(none, clock, "node7", 1.0) == []
    assert [source.name for source in device_sources(every, clock, "node7", 1.0)] == ["nvml", "amd", "intel"]
