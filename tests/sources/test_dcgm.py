"""dcgm-exporter pages as its releases print them: both name generations, blanks, MIG, time slicing, repeats."""

import asyncio

import pytest

from engine_shim.telemetry.gpu_page import Gpu, GpuPage
from gpuwatch.sources.gpu.dcgm import DcgmPage, DcgmSource
from gpuwatch.sources.gpu.dcgm.fields import FIELDS, SERVING
from tests.sources.stub_server import HandClock, Reply, StubServer

A = 'gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node7"'
OLD = f"""\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{{A},DCGM_FI_DRIVER_VERSION="535.129.03"}} 1410
DCGM_FI_DEV_POWER_USAGE{{{A}}} 331.402000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{A}}} 918273645546
DCGM_FI_DEV_GPU_UTIL{{{A}}} 99
DCGM_FI_DEV_FB_USED{{{A}}} 74039
DCGM_FI_DEV_FB_FREE{{{A}}} 7012
DCGM_FI_DEV_FB_RESERVED{{{A}}} 500
DCGM_FI_DEV_GPU_TEMP{{{A}}} 61
DCGM_FI_DEV_XID_ERRORS{{{A}}} 0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{A}}} 0.987412
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{A}}} 0.072133
DCGM_FI_PROF_DRAM_ACTIVE{{{A}}} 0.741905
"""
MIB = 1024 * 1024


def read(text, page=None, at=1.0):
    report = (page or DcgmPage()).read(text.encode(), at)
    return report, {f.subject.gpu: dict(zip(f.names, f.values[0].tolist(), strict=True)) for f in report.frames}


def test_values_are_in_base_units_under_the_catalogues_names():
    report, gpus = read(OLD)
    assert gpus == {
        "GPU-a": {
            "gpu_sm_clock_hertz": 1.41e9, "gpu_power_watts": 331.402, "gpu_energy_joules_total": 918273645.546,
            "gpu_util_ratio": 0.99, "gpu_memory_used_bytes": 74039 * MIB, "gpu_memory_reserved_bytes": 500 * MIB,
            "gpu_memory_total_bytes": (74039 + 7012 + 500) * MIB, "gpu_temperature_celsius": 61,
            "gpu_xid_last_code": 0, "gpu_xid_total": 0, "gpu_gr_engine_active_ratio": 0.987412,
            "gpu_tensor_active_ratio": 0.072133, "gpu_dram_active_ratio": 0.741905, "gpu_sm_clock_max_hertz": 1.41e9,
        }
    }  # fmt: skip
    assert report.dropped == 0
    assert report.info[0].labels["model"] == "NVIDIA H100 80GB HBM3"
    assert report.info[0].labels["driver"] == "535.129.03"
    assert "gpu_sm_active_ratio" not in gpus["GPU-a"], "what the exporter does not show is absent"


def test_new_names_say_the_same_as_old_ones():
    renamed = OLD
    for old, new in (
        ("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"), ("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"),
        ("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"), ("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS"),
        ("DEV_GPU_TEMP{", "DEV_GPU_TEMP_CELSIUS{"), ("DEV_XID_ERRORS", "DEV_XID_ERROR"),
        ("DEV_GPU_UTIL{", "DEV_GPU_UTIL_RATIO{"),
    ):  # fmt: skip
        renamed = renamed.replace(old, new)
    assert renamed != OLD
    assert read(renamed)[1] == read(OLD)[1]


def test_every_field_is_a_signal_of_the_catalogue_or_serves_one():
    from gpuwatch.catalog import CATALOG

    assert {f.signal for f in FIELDS.values()} - CATALOG.keys() == SERVING


@pytest.mark.parametrize(
    "value",
    ["9223372036854775794", "2147483634", "140737488355330.000000", "nan", "-5", "ERROR - FAILED TO CONVERT", "1e300"],
)
def test_blanks_and_impossible_values_are_dropped_and_the_rest_survives(value):
    lines = f"DCGM_FI_PROF_DRAM_ACTIVE{{{A}}} {value}\nDCGM_FI_DEV_POWER_USAGE{{{A}}} 300\n"
    report, gpus = read(lines)
    assert gpus == {"GPU-a": {"gpu_power_watts": 300}}
    assert report.dropped == (0 if value == "nan" else 1), "NaN is how a page says that it does not know"


def test_a_mig_ratio_a_little_above_one_is_one_and_far_above_is_none():
    assert read(f"DCGM_FI_PROF_SM_ACTIVE{{{A}}} 1.070318\n")[1]["GPU-a"]["gpu_sm_active_ratio"] == 1.0
    assert read(f"DCGM_FI_PROF_SM_ACTIVE{{{A}}} 7.5\n")[1] == {}


def test_mig_instances_are_subjects_and_board_values_are_the_devices():
    text = "".join(
        f'DCGM_FI_PROF_SM_UTIL_RATIO{{UUID="GPU-c",GPU_I_ID="{i}"}} 0.{i}\n'
        f'DCGM_FI_DEV_BOARD_POWER_WATTS{{UUID="GPU-c",GPU_I_ID="{i}"}} 402.7\n'
        for i in (2, 5, 7)
    )
    assert read(text)[1] == {
        "GPU-c": {"gpu_power_watts": 402.7}, "GPU-c/2": {"gpu_sm_active_ratio": 0.2},
        "GPU-c/5": {"gpu_sm_active_ratio": 0.5}, "GPU-c/7": {"gpu_sm_active_ratio": 0.7},
    }  # fmt: skip


def test_time_slicing_repeats_a_device_for_each_pod_and_is_read_once():
    text = "".join(f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-a",pod="p{i}"}} 300\n' for i in range(4))
    assert read(text)[1] == {"GPU-a": {"gpu_power_watts": 300}}


def test_a_page_like_the_last_one_is_a_repeat_and_no_sample():
    page = DcgmPage()
    assert read(OLD, page, 1.0)[1]
    report, gpus = read(OLD, page, 2.0)
    assert (gpus, report.repeated) == ({}, True)
    assert read(OLD.replace("918273645546", "918273945546"), page, 3.0)[1]


def test_the_highest_clock_ever_seen_is_remembered():
    page = DcgmPage()
    seen = []
    for at, clock in enumerate((1980, 345, 1755)):
        text = f'DCGM_FI_DEV_SM_CLOCK{{UUID="GPU-a"}} {clock}\n'
        seen.append(read(text, page, at)[1]["GPU-a"]["gpu_sm_clock_max_hertz"])
    assert seen == [1.98e9] * 3


def test_a_new_xid_is_an_event_and_a_sticky_one_is_not():
    page = DcgmPage()
    events, totals = [], []
    for at, code in enumerate((31, 31, 79, 79, 0, 79)):
        text = f'DCGM_FI_DEV_XID_ERRORS{{UUID="GPU-a"}} {code}\nDCGM_FI_DEV_POWER_USAGE{{UUID="GPU-a"}} {at}\n'
        report, gpus = read(text, page, float(at))
        events += [(e.at, e.detail["code"]) for e in report.events]
        totals.append(gpus["GPU-a"]["gpu_xid_total"])
    assert events == [(2.0, "79"), (5.0, "79")]
    assert totals == [0, 0, 1, 1, 1, 2]


def test_throttling_comes_from_the_nanosecond_counter_or_the_reasons():
    page = DcgmPage()
    ratios = []
    for at, ns in ((0.0, 0), (1.0, 250_000_000), (3.0, 2_250_000_000)):
        gpus = read(f'DCGM_FI_DEV_THERMAL_VIOLATION{{UUID="GPU-a"}} {ns}\n', page, at)[1]
        ratios.append(gpus.get("GPU-a", {}).get("gpu_throttled_ratio"))
    assert ratios == [None, 0.25, 1.0]
    for reasons, ratio in ((0x1 | 0x4, 0.0), (0x4 | 0x40, 1.0)):
        gpus = read(f'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{UUID="GPU-a"}} {reasons}\n')[1]
        assert gpus["GPU-a"]["gpu_throttled_ratio"] == ratio


def test_odd_label_sets_are_read_and_rows_without_a_device_are_not():
    text = (
        'DCGM_FI_DEV_POWER_USAGE{gpu="0", uuid="GPU-a",pod_name="x"} 1 1700000000000\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="1"} 2\n'
        'DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{UUID="GPU-a"} 3\n'
    )
    assert read(text)[1] == {"GPU-a": {"gpu_power_watts": 1}}


def test_the_workload_is_named_where_prometheus_renamed_its_labels():
    text = 'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-a",exported_pod="vllm-0",pod="dcgm-exporter-x"} 1\n'
    assert read(text)[0].info[0].labels["pod"] == "vllm-0"


def test_the_modelled_devices_page_is_read():
    page = GpuPage(Gpu("GPU-m", "H100"))
    page.update(1.0, {"gpu_sm_active_ratio": 0.5, "gpu_power_watts": 400.0, "gpu_memory_used_bytes": 512 * MIB})
    gpus = read(page.render().decode())[1]
    assert gpus["GPU-m"] == {"gpu_sm_active_ratio": 0.5, "gpu_power_watts": 400.0, "gpu_memory_used_bytes": 512 * MIB}


def test_an_exporter_is_polled_over_http_and_its_repeats_are_counted():
    async def main():
        async with StubServer(lambda _: Reply(OLD.encode())) as server:
            source = DcgmSource(server.url, HandClock())
            batches = [await source.poll(t) for t in (1.0, 2.0, 3.0)]
            await source.aclose()
            return batches, source.repeats, server.targets

    batches, repeats, targets = asyncio.run(main())
    assert [len(b.frames) for b in batches] == [1, 0, 0]
    assert [b.error for b in batches] == [None] * 3
    assert repeats == 2
    assert targets == ["/metrics"] * 3
