"""Intel devices through a scripted Level Zero Sysman: rates from counters, refusals, loss, and no library."""

import ctypes

import pytest

from gpuwatch.sources.gpu import intel
from gpuwatch.sources.gpu.intel import structs
from gpuwatch.sources.gpu.vendor import VendorSource
from tests.intel.scripted import Code, ScriptedSysman, a_second_later, flex
from tests.nvml.looking import events, facts, readings
from tests.sources.stub_server import HandClock

CARD = "intel-" + "01" * 16


class Looker:
    """A source on a hand clock over a scripted library."""

    def __init__(self, *cards):
        self.sysman = ScriptedSysman(*cards)
        self.clock = HandClock(1000.0)
        self.source = VendorSource("intel", intel.IntelLibrary(lambda: self.sysman), self.clock, "node7")

    def look(self, after_s: float = 1.0):
        self.clock.t += after_s
        return self.source.look()


def test_a_card_tells_what_counters_say_over_a_second():
    card = flex()
    looker = Looker(card)
    looker.look()
    a_second_later(card, 1_000_000)
    assert readings(looker.look(), CARD) == pytest.approx({
        "gpu_up": 1, "gpu_gr_engine_active_ratio": 0.8, "gpu_util_ratio": 0.8, "gpu_memory_total_bytes": 16 << 30,
        "gpu_memory_used_bytes": 12 << 30, "gpu_dram_bytes_per_second": 6e11, "gpu_dram_active_ratio": 0.5,
        "gpu_sm_clock_hertz": 1.2e9, "gpu_sm_clock_max_hertz": 1.55e9, "gpu_throttled_power_ratio": 0.1,
        "gpu_throttled_thermal_ratio": 0, "gpu_throttled_brake_ratio": 0, "gpu_throttled_ratio": 0,
        "gpu_temperature_celsius": 66, "gpu_memory_temperature_celsius": 58, "gpu_energy_joules_total": 250,
        "gpu_power_watts": 250,
    })  # fmt: skip


def test_a_rate_needs_two_looks():
    values = readings(Looker(flex()).look(), CARD)
    assert not {"gpu_gr_engine_active_ratio", "gpu_power_watts", "gpu_dram_active_ratio"} & set(values)
    assert values["gpu_processes"] == 1


def test_a_thermal_limit_is_a_slowdown():
    card = flex()
    card["clocks"][0]["zesFrequencyGetState"] = {"actual": 900.0, "reasons": 0x8}
    looker = Looker(card)
    looker.look()
    a_second_later(card, 1_000_000)
    values = readings(looker.look(), CARD)
    assert values["gpu_throttled_thermal_ratio"] == values["gpu_throttled_ratio"] == pytest.approx(0.1)


def test_without_the_time_counter_the_moment_serves():
    card = flex()
    card["clocks"][0]["zesFrequencyGetThrottleTime"] = Code(0x78000003)
    assert readings(Looker(card).look(), CARD)["gpu_throttled_power_ratio"] == 1.0


def test_a_card_says_what_it_is_and_that_nobody_has_checked():
    told = facts(Looker(flex()).look(), CARD)
    assert (told["model"], told["driver"]) == ("Intel(R) Data Center GPU Max 1100", "1.6.0")
    assert told["verified_on_hardware"] == "no"
    assert told["peak_dram_bytes_per_second"] == "1.2e+12"


def test_what_is_refused_is_not_asked_again():
    card = flex()
    card["memories"][0]["zesMemoryGetBandwidth"] = Code(0x70010000)
    looker = Looker(card)
    for _ in range(20):
        said = looker.look()
    assert looker.sysman.calls.count("zesMemoryGetBandwidth") == 1
    assert readings(said, CARD)["gpu_memory_used_bytes"] == 12 << 30


def test_a_card_that_supports_nothing_is_up():
    looker = Looker({})
    assert readings(looker.look(), "intel-0") == {"gpu_up": 1.0}


def test_a_lost_card_is_an_event_and_returns():
    one, two = flex(1), flex(2)
    looker = Looker(one, two)
    looker.look()
    two["lost"] = Code(0x70000001)
    two["memories"][0]["zesMemoryGetState"] = Code(0x70000001)
    said = looker.look()
    other = "intel-" + "02" * 16
    assert events(said) == [(f"gpu/{other}", "gpu_lost")]
    assert readings(said, other) == {"gpu_up": 0.0}
    two.pop("lost")
    two["memories"][0]["zesMemoryGetState"] = {"free": 0, "size": 1 << 30}
    assert [event for _ in range(10) for event in events(looker.look())] == [(f"gpu/{other}", "gpu_returned")]


def test_a_library_that_does_not_start_is_tried_again():
    looker = Looker(flex())
    looker.sysman.start = 0x78000001
    assert looker.look().error
    looker.sysman.start = 0
    assert any(looker.look().error is None for _ in range(5))


def test_no_library_is_said_and_survived():
    def load():
        raise OSError("libze_loader.so.1: cannot open shared object file")

    source = VendorSource("intel", intel.IntelLibrary(load), HandClock(), "node7")
    assert "does not load" in (source.look().error or "")


def test_structs_have_the_headers_sizes():
    """zes_api.h on a 64-bit machine: a field in the wrong place would be a wrong number."""
    sizes = {
        structs.DeviceProperties: 776, structs.EngineProperties: 32, structs.FrequencyProperties: 48,
        structs.FrequencyState: 64, structs.MemoryProperties: 48, structs.MemoryState: 40,
        structs.TemperatureProperties: 48, structs.ProcessState: 48, structs.Counter: 16, structs.Bandwidth: 32,
    }  # fmt: skip
    assert {kind: ctypes.sizeof(kind) for kind in sizes} == sizes


def test_a_card_that_is_lost_from_the_start_leaves_the_others():
    lost = flex(2)
    lost["zesDeviceGetProperties"] = Code(0x70000001)
    said = Looker(lost, flex(1)).look()
    assert said.error is None
    assert readings(said, CARD)["gpu_up"] == 1.0
