"""What devices say, in base units: a Hopper with everything, an Ampere without GPM, and what is refused or nonsense."""

import math

import pytest

from gpuwatch.catalog import CATALOG, check_value
from tests.nvml.looking import facts, readings
from tests.nvml.scripted import GIB, MIB, UINT, Code, Scripted, ampere, hopper


def test_a_hopper_tells_everything_in_base_units(install):
    _, looker = install(hopper())
    values = looker.values()
    expected = {
        "gpu_up": 1, "gpu_sm_clock_hertz": 1.755e9, "gpu_sm_clock_max_hertz": 1.98e9, "gpu_power_watts": 572,
        "gpu_power_limit_watts": 700, "gpu_temperature_celsius": 61, "gpu_memory_temperature_celsius": 70,
        "gpu_energy_joules_total": 918_273, "gpu_util_ratio": 0.97, "gpu_memory_busy_ratio": 0.61,
        "gpu_memory_used_bytes": 71 * GIB, "gpu_memory_total_bytes": 80 * GIB, "gpu_memory_reserved_bytes": GIB,
        "gpu_bar1_used_bytes": GIB, "gpu_ecc_corrected_total": 7, "gpu_ecc_uncorrected_total": 0,
        "gpu_remapped_rows_corrected": 2, "gpu_remapped_rows_uncorrected": 1, "gpu_remap_pending": 1,
        "gpu_remap_failed": 0, "gpu_recovery_action": 0, "gpu_pcie_link_generation": 5, "gpu_pcie_link_width": 16,
        "gpu_pcie_replay_total": 3, "gpu_processes": 1, "gpu_xid_total": 0, "gpu_memory_clock_hertz": 2.619e9,
    }  # fmt: skip
    assert values == pytest.approx(expected)
    assert all(name in CATALOG and check_value(name, value) for name, value in values.items())


def test_gpm_needs_two_samples_and_tells_ratios_and_bytes_a_second(install):
    _, looker = install(hopper())
    assert looker.values(source="gpm") == {}
    assert looker.values(source="gpm") == pytest.approx({
        "gpu_gr_engine_active_ratio": 0.98, "gpu_sm_active_ratio": 0.913, "gpu_sm_occupancy_ratio": 0.245,
        "gpu_tensor_active_ratio": 0.279, "gpu_dram_active_ratio": 0.8, "gpu_pcie_tx_bytes_per_second": 100 * MIB,
        "gpu_pcie_rx_bytes_per_second": 873 * MIB, "gpu_nvlink_rx_bytes_per_second": 5000 * MIB,
        "gpu_nvlink_tx_bytes_per_second": 4000 * MIB, "gpu_dram_bytes_per_second": 0.8 * 3.352e12,
    })  # fmt: skip


def test_gpm_is_not_asked_again_within_a_tenth_of_a_second(install):
    """Two samples closer than 100 ms would be one sample."""
    nvml, looker = install(hopper())
    looker.look()
    looker.look(0.05)
    assert nvml.calls["nvmlGpmSampleGet"] == 1
    assert readings(looker.look(0.1), source="gpm")["gpu_sm_active_ratio"] == pytest.approx(0.913)


def test_gpm_buffers_are_two_and_are_given_back(install):
    nvml, looker = install(hopper())
    for _ in range(20):
        looker.look()
    assert nvml.calls["nvmlGpmSampleAlloc"] == 2
    looker.close()
    assert nvml.samples == {}


def test_a_gpm_figure_that_is_nan_or_refused_is_missing_and_the_others_are_not(install):
    gpu = hopper()
    gpu.gpm |= {3: math.nan, 5: Code(3), 10: math.inf}
    _, looker = install(gpu)
    looker.look()
    values = looker.values(source="gpm")
    assert values["gpu_sm_active_ratio"] == pytest.approx(0.913)
    assert not {"gpu_sm_occupancy_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio"} & set(values)


def test_a_ratio_a_little_above_one_is_one_and_an_impossible_one_is_dropped_and_counted(install):
    gpu = hopper()
    gpu.gpm |= {2: 103.0, 3: 900.0}
    _, looker = install(gpu)
    looker.look()
    said = looker.look()
    assert readings(said)["gpu_sm_active_ratio"] == 1.0
    assert "gpu_sm_occupancy_ratio" not in readings(said)
    assert said.dropped == 1


def test_peaks_come_from_the_device(install):
    """H100 SXM: 5120 bit, 2619 MHz, two transfers a clock: 3.352 TB/s."""
    _, looker = install(hopper())
    said = facts(looker.look())
    assert said["peak_dram_bytes_per_second"] == "3.352e+12"
    assert said["peak_dram_from"] == "device"
    assert (said["architecture"], said["driver"], said["model"]) == ("Hopper", "570.86.15", "NVIDIA H100 80GB HBM3")


def test_a_device_of_another_size_than_its_name_has_no_tensor_peak(install):
    """Silicon of different speed is sold under one name."""
    gpu = hopper()
    gpu.answers["nvmlDeviceGetMemoryInfo"] = (96 * GIB, 0, 96 * GIB)
    gpu.answers["nvmlDeviceGetMemoryBusWidth"] = Code(3)
    _, looker = install(gpu)
    assert not [key for key in facts(looker.look()) if key.startswith("peak")]


def test_an_ampere_without_gpm_tells_the_rest(install):
    nvml, looker = install(ampere())
    looker.look()
    said = looker.look()
    values = readings(said)
    assert "gpu_sm_active_ratio" not in values
    assert values["gpu_util_ratio"] == 0.97
    assert values["gpu_memory_used_bytes"] == 72 * GIB  # the first version, which includes what is reserved
    assert "gpu_memory_reserved_bytes" not in values
    assert values["gpu_throttled_ratio"] == values["gpu_throttled_thermal_ratio"] == 1.0
    assert (values["gpu_throttled_power_ratio"], values["gpu_throttled_brake_ratio"]) == (1.0, 0.0)
    assert nvml.calls["nvmlGpmSampleAlloc"] == 0


def test_what_a_device_does_not_support_is_asked_once(install):
    """Each refused call would cost the driver's lock each second, for nothing."""
    nvml, looker = install(Scripted("GPU-a", answers={"nvmlDeviceGetPowerUsage": 80_000}))
    for _ in range(30):
        values = looker.values()
    assert values == {"gpu_up": 1.0, "gpu_xid_total": 0.0, "gpu_power_watts": 80.0}
    refused = {call: n for call, n in nvml.calls.items() if call.startswith("nvmlDevice") and n > 6}
    assert refused == {"nvmlDeviceGetPowerUsage": 30}


def test_a_device_that_tells_nothing_but_its_name_is_up(install):
    _, looker = install(Scripted("GPU-a"))
    looker.look()
    assert looker.values()["gpu_up"] == 1.0


def test_a_symbol_that_the_driver_lacks_is_a_refusal(install):
    nvml, looker = install(hopper())
    nvml.missing |= {"nvmlDeviceGetFieldValues", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetTotalEnergyConsumption"}
    looker.look()
    values = looker.values()
    assert values["gpu_power_watts"] == 572
    assert "gpu_energy_joules_total" not in values
    assert "nvmlDeviceGetFieldValues" not in nvml.calls


def test_missing_permission_is_said_once_and_not_asked_again(install):
    gpu = hopper()
    gpu.answers |= {"nvmlDeviceGetPowerUsage": Code(4), "nvmlGpmQueryDeviceSupport": Code(4)}
    nvml, looker = install(gpu)
    said = looker.look()
    denied = facts(said)["no_permission"]
    assert "nvmlDeviceGetPowerUsage" in denied
    assert "nvmlGpmQueryDeviceSupport" in denied
    later = [looker.look() for _ in range(20)]
    assert not any(facts(said) for said in later)
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == nvml.calls["nvmlGpmQueryDeviceSupport"] == 1


def test_permission_lost_while_sampling_falls_back_to_what_is_left(install):
    gpu = hopper()
    nvml, looker = install(gpu)
    looker.look()
    gpu.answers["nvmlGpmSampleGet"] = Code(4)
    for _ in range(12):
        said = looker.look()
        assert readings(said)["gpu_power_watts"] == 572
    assert nvml.calls["nvmlGpmSampleGet"] == 2


def test_a_passing_error_costs_one_reading(install):
    gpu = hopper()
    _, looker = install(gpu)
    looker.look()
    gpu.answers["nvmlDeviceGetPowerUsage"] = Code(999)
    values = looker.values()
    assert values["gpu_up"] == 1.0
    assert "gpu_power_watts" not in values
    gpu.answers["nvmlDeviceGetPowerUsage"] = 100_000
    assert looker.values()["gpu_power_watts"] == 100.0


def test_not_available_is_not_a_number(install):
    """All bits set is NVML's "not available", for 32 bits and for 64."""
    gpu = hopper()
    gpu.answers |= {"nvmlDeviceGetPowerUsage": 0xFFFFFFFF, "nvmlDeviceGetTotalEnergyConsumption": 2**64 - 1}
    gpu.fields[82] = (UINT, 0xFFFFFFFF)
    _, looker = install(gpu)
    missing = {"gpu_power_watts", "gpu_energy_joules_total", "gpu_memory_temperature_celsius"}
    assert not missing & set(looker.values())


def test_a_name_that_is_no_text_is_survived(install):
    gpu = hopper()
    gpu.answers["nvmlDeviceGetName"] = b"H\xff\xfe100"
    _, looker = install(gpu)
    said = looker.look()
    assert readings(said)["gpu_up"] == 1.0
    assert "model" not in facts(said)


def test_the_share_of_time_slowed_down_comes_from_the_counters_growth(install):
    """0.25 s of thermal slowdown within a second, by the hardware; 0.1 s by software, which may be the same time."""
    gpu = hopper()
    _, looker = install(gpu)
    looker.look()
    gpu.fields |= {270: 250_000_000, 269: 100_000_000, 74: 900_000_000}
    values = looker.values()
    assert values["gpu_throttled_thermal_ratio"] == values["gpu_throttled_ratio"] == pytest.approx(0.25)
    assert values["gpu_throttled_power_ratio"] == pytest.approx(0.9)
    assert values["gpu_throttled_brake_ratio"] == values["gpu_throttled_sync_ratio"] == 0.0


def test_a_counter_that_falls_says_nothing_for_that_interval(install):
    """Driver reload and wrap look alike; neither is negative time, nor 18 billion seconds."""
    gpu = hopper()
    gpu.fields[271] = 2**64 - 10
    _, looker = install(gpu)
    looker.look()
    gpu.fields[271] = 5_000
    assert "gpu_throttled_brake_ratio" not in looker.values()
    gpu.fields[271] = 500_005_000
    assert looker.values()["gpu_throttled_brake_ratio"] == pytest.approx(0.5)


def test_more_time_than_has_passed_is_all_of_it(install):
    gpu = hopper()
    _, looker = install(gpu)
    looker.look()
    gpu.fields[270] = 5_000_000_000
    assert looker.values()["gpu_throttled_ratio"] == 1.0


def test_causes_without_a_counter_come_from_the_mask(install):
    """Older drivers count the power cap only; a hardware slowdown without a named cause is still one."""
    gpu = hopper()
    gpu.fields = {74: 0, 76: 0}
    gpu.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x8
    _, looker = install(gpu)
    assert facts(looker.look())["throttling_from"] == "counters and reasons"
    gpu.fields[74] = 500_000_000
    values = looker.values()
    assert values["gpu_throttled_power_ratio"] == pytest.approx(0.5)
    assert (values["gpu_throttled_thermal_ratio"], values["gpu_throttled_ratio"]) == (0.0, 1.0)


def test_link_counters_become_bytes_a_second(install):
    """NVLink counts KiB, PCIe bytes; newer links count bytes in fields of their own."""
    gpu = hopper()
    _, looker = install(gpu)
    looker.look()
    gpu.fields |= {197: 10_000, 198: 20_000, (138, 0xFFFFFFFF): 1_000, (139, 0xFFFFFFFF): 2_000}
    values = looker.values(10.0, source="nvml-slow")
    assert values["gpu_pcie_tx_bytes_per_second"] == 1000
    assert values["gpu_pcie_rx_bytes_per_second"] == 2000
    assert values["gpu_nvlink_tx_bytes_per_second"] == 102_400
    newer = hopper("GPU-b")
    newer.fields = {(202, 0xFFFFFFFF): 0, (204, 0xFFFFFFFF): 0}
    _, looker = install(newer)
    looker.look()
    newer.fields |= {(202, 0xFFFFFFFF): 5_000}
    assert looker.values(10.0, "GPU-b", "nvml-slow")["gpu_nvlink_tx_bytes_per_second"] == 500


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 77])
def test_a_field_is_read_by_the_type_that_it_says(install, kind):
    gpu = hopper()
    gpu.fields[82] = (kind, 71)
    _, looker = install(gpu)
    found = looker.values().get("gpu_memory_temperature_celsius")
    assert found == (None if kind == 77 else 71)


def test_utilisation_of_all_devices_is_never_asked_in_place_of_activity(install):
    """A kernel that is resident says nothing of health: the two are signals of different names and sources."""
    _, looker = install(hopper())
    looker.look()
    said = looker.look()
    sources = {frame.source: set(frame.names) for frame in said.frames}
    assert "gpu_util_ratio" in sources["nvml"]
    assert "gpu_sm_active_ratio" in sources["gpm"]
