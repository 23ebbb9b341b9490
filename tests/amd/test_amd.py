"""AMD devices through a scripted amdsmi: signals in base units, "N/A", refusals, loss, and an import that fails."""

import asyncio

import pytest

from gpuwatch.catalog import CATALOG
from gpuwatch.sources.gpu import amd
from gpuwatch.sources.gpu.amd.calls import CALLS
from gpuwatch.sources.gpu.vendor import VendorSource
from tests.amd.scripted import AmdSmiLibraryException, ScriptedAmdsmi, mi300x
from tests.nvml.looking import events, facts, readings
from tests.sources.stub_server import HandClock

MI = "21ff74a1-0000-1000-80e9-aa6d4a2b8e70"
MIB = 1024 * 1024


class Looker:
    """A source on a hand clock over a scripted module."""

    def __init__(self, *devices):
        self.module = ScriptedAmdsmi(*devices)
        self.clock = HandClock(1000.0)
        self.source = VendorSource("amd", amd.AmdLibrary(lambda: self.module), self.clock, "node7")

    def look(self, after_s: float = 1.0):
        self.clock.t += after_s
        return self.source.look()


def test_a_device_tells_the_catalogues_signals_in_base_units():
    said = Looker(mi300x()).look()
    assert readings(said, MI) == pytest.approx({
        "gpu_up": 1, "gpu_gr_engine_active_ratio": 0.96, "gpu_util_ratio": 0.96, "gpu_dram_active_ratio": 0.41,
        "gpu_memory_used_bytes": 150000 * MIB, "gpu_memory_total_bytes": 196592 * MIB, "gpu_power_watts": 690,
        "gpu_power_limit_watts": 750, "gpu_sm_clock_hertz": 1.93e9, "gpu_sm_clock_max_hertz": 2.1e9,
        "gpu_memory_clock_hertz": 1.3e9, "gpu_temperature_celsius": 71, "gpu_memory_temperature_celsius": 60,
        "gpu_energy_joules_total": 15.3, "gpu_ecc_corrected_total": 4, "gpu_ecc_uncorrected_total": 0,
        "gpu_pcie_link_width": 16, "gpu_pcie_replay_total": 2, "gpu_processes": 1,
    })  # fmt: skip
    assert said.error is None


def test_a_device_says_what_it_is_and_that_nobody_has_checked():
    told = facts(Looker(mi300x()).look(), MI)
    assert told["model"] == "AMD Instinct MI300X"
    assert (told["peak_dram_bytes_per_second"], told["peak_dram_from"]) == ("5.3e+12", "device")
    assert told["verified_on_hardware"] == "no"


def test_not_available_is_missing_and_older_keys_stand_in():
    """amdsmi 6 named clocks `cur_clk`; what is "N/A" in one key may be told under another."""
    device = mi300x(
        amdsmi_get_power_info={"socket_power": "N/A", "current_socket_power": 0, "average_socket_power": 402},
        amdsmi_get_clock_info={0: {"cur_clk": 1500, "max_clk": "N/A"}},
        amdsmi_get_gpu_activity={"gfx_activity": "N/A", "umc_activity": "N/A"},
    )
    values = readings(Looker(device).look(), MI)
    assert (values["gpu_power_watts"], values["gpu_sm_clock_hertz"]) == (402, 1.5e9)
    missing = {"gpu_gr_engine_active_ratio", "gpu_dram_active_ratio", "gpu_sm_clock_max_hertz", "gpu_power_limit_watts"}
    assert not missing & set(values)


def test_the_share_of_time_held_down_is_the_growth_of_counters():
    device = mi300x()
    looker = Looker(device)
    looker.look()
    device["amdsmi_get_violation_status"] = {
        "acc_counter": 2000, "acc_ppt_pwr": 600, "acc_socket_thrm": 50, "acc_hbm_thrm": 200, "acc_vr_thrm": 0,
        "acc_prochot_thrm": "N/A", "per_prochot_thrm": "N/A", "active_prochot_thrm": "N/A",
    }  # fmt: skip
    values = readings(looker.look(10), MI)
    assert values["gpu_throttled_power_ratio"] == pytest.approx(0.5)
    assert values["gpu_throttled_thermal_ratio"] == values["gpu_throttled_ratio"] == pytest.approx(0.2)


@pytest.mark.parametrize(("told", "share"), [({"per_socket_thrm": 35}, 0.35), ({"active_socket_thrm": True}, 1.0)])
def test_without_counters_percentages_or_the_moment_serve(told, share):
    values = readings(Looker(mi300x(amdsmi_get_violation_status=told)).look(), MI)
    assert values["gpu_throttled_ratio"] == pytest.approx(share)


def test_a_refused_call_is_not_made_again_and_said():
    looker = Looker(mi300x(amdsmi_get_power_info=AmdSmiLibraryException(10)))
    said = [looker.look(11) for _ in range(10)]
    assert looker.module.calls.count("amdsmi_get_power_info") == 1
    assert "amdsmi_get_power_info" in facts(said[0], MI)["no_permission"]
    assert readings(said[-1], MI)["gpu_dram_active_ratio"] == pytest.approx(0.41)


def test_the_expensive_calls_are_made_every_ten_seconds():
    """amdsmi takes two samples a tenth of a second apart for the violation status, and walks processes for the list."""
    looker = Looker(mi300x())
    for _ in range(30):
        looker.look()
    assert looker.module.calls.count("amdsmi_get_violation_status") == 3
    assert looker.module.calls.count("amdsmi_get_gpu_process_list") == 3


def test_a_lost_device_is_an_event_and_returns():
    one, two = mi300x(), mi300x(amdsmi_get_gpu_device_uuid="other")
    looker = Looker(one, two)
    looker.look()
    kept = two["amdsmi_get_gpu_activity"]
    two["amdsmi_get_gpu_activity"] = AmdSmiLibraryException(31)
    said = looker.look()
    assert events(said) == [("gpu/other", "gpu_lost")]
    assert readings(said, "other") == {"gpu_up": 0.0}
    assert readings(said, MI)["gpu_up"] == 1.0
    two["amdsmi_get_gpu_activity"] = kept
    assert [event for _ in range(5) for event in events(looker.look())] == [("gpu/other", "gpu_returned")]


def test_a_driver_that_is_gone_is_an_error_until_it_is_back():
    device = mi300x()
    looker = Looker(device)
    looker.look()
    kept, device["amdsmi_get_gpu_activity"] = device["amdsmi_get_gpu_activity"], AmdSmiLibraryException(34)
    said = looker.look()
    assert said.error == "amdsmi is lost: amdsmi_get_gpu_activity: error 34"
    assert readings(said, MI) == {"gpu_up": 0.0}
    device["amdsmi_get_gpu_activity"] = kept
    assert any(looker.look().error is None for _ in range(5))


@pytest.mark.parametrize("error", [KeyError("ROCM_HOME"), OSError("libamd_smi.so"), SystemExit(1), ImportError("no")])
def test_an_import_that_fails_is_said_and_survived(error):
    def load():
        raise error

    clock = HandClock()
    source = VendorSource("amd", amd.AmdLibrary(load), clock, "node7")
    for _ in range(100):
        clock.t += 1
        assert "amdsmi does not start" in (source.look().error or "")


def test_impossible_numbers_are_dropped_and_counted():
    said = Looker(mi300x(amdsmi_get_gpu_activity={"gfx_activity": 65535, "umc_activity": -3})).look()
    assert "gpu_dram_active_ratio" not in readings(said, MI)
    assert said.dropped == 3


def test_a_poll_is_a_batch_like_any_other():
    looker = Looker(mi300x())

    async def story():
        batch = await looker.source.poll(looker.clock.now())
        await looker.source.aclose()
        return batch

    batch = asyncio.run(story())
    assert (batch.source, batch.role, {frame.source for frame in batch.frames}) == ("amd", "gpu", {"amd", "amd-slow"})
    assert "amdsmi_shut_down" in looker.module.calls


def test_the_table_speaks_the_catalogue():
    assert {pick.signal for call in CALLS for pick in call.picks} <= set(CATALOG)


def test_it_is_there_only_with_the_kernels_driver(tmp_path):
    assert not amd.is_there(tmp_path)


def test_a_device_that_is_lost_from_the_start_leaves_the_others():
    said = Looker(mi300x(amdsmi_get_gpu_device_uuid=AmdSmiLibraryException(31)), mi300x()).look()
    assert said.error is None
    assert readings(said, MI)["gpu_up"] == 1.0
