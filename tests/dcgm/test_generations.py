"""Exporter pages of all generations, and what each says of devices, holders and time."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.catalog import CATALOG, check_value
from gpuwatch.sources.gpu.dcgm import DcgmPage
from gpuwatch.sources.gpu.dcgm.fields import AMD, DCGM, FIELDS, NODE

CAPTURES = Path(__file__).parents[1] / "captures" / "devices"
PAGES = sorted(CAPTURES.glob("*.txt"))
MIB = 1024 * 1024
A100, H100 = "GPU-0b1e7c44-2f10-4a3d-9c11-6f0a5d20aa0", "GPU-91c0de10-5b5b-4d1c-8a2e-77aa00bb000"
H200 = "GPU-c0ffee00-77aa-4bcd-8eef-0000000000c3"


def captured(name):
    return next(CAPTURES.glob(name)).read_text()


def read(text, page=None, at=1.0):
    page = page or DcgmPage(host="node7")
    report = page.read(text.encode(), at)
    return report, {f.subject.gpu: dict(zip(f.names, f.values[0].tolist(), strict=True)) for f in report.frames}


def held(page):
    return {key: [holder.words for holder in who] for key, who in page.holders.items()}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_every_value_of_a_captured_page_is_possible(path):
    _, gpus = read(path.read_text())
    assert gpus
    assert all(check_value(name, value) for values in gpus.values() for name, value in values.items())


def test_bare_metal_shows_ratios_whatever_their_help_says():
    """HELP says percent of what is 0–1; an XID that was there before the agent is no event."""
    page = DcgmPage()
    report, gpus = read(captured("dcgm-3.3.5*"), page)
    assert gpus[A100 + "1"]["gpu_dram_active_ratio"] == 0.71295
    assert gpus[A100 + "1"]["gpu_util_ratio"] == 1.0
    assert gpus[A100 + "1"]["gpu_memory_total_bytes"] == (74931 + 6120) * MIB
    assert (gpus[A100 + "2"]["gpu_xid_last_code"], gpus[A100 + "2"]["gpu_xid_total"], report.events) == (43, 0, ())
    assert page.unmapped == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}
    assert held(page) == {}


def test_kubernetes_names_the_pod_of_each_device_and_none_where_there_is_none():
    page = DcgmPage()
    report, gpus = read(captured("dcgm-4.8.2*"), page)
    assert held(page) == {H100 + "0": ["chat/decode-70b-0/vllm"], H100 + "1": ["chat/decode-70b-0/vllm"]}
    facts = {info.subject.gpu: info.labels for info in report.info}
    assert (facts[H100 + "0"]["pod"], facts[H100 + "2"]["pod"]) == ("decode-70b-0", "")
    assert gpus[H100 + "1"]["gpu_ecc_corrected_total"] == 5
    assert gpus[H100 + "0"]["gpu_memory_total_bytes"] == (77432 + 3308 + 819) * MIB


def test_mig_rows_are_instances_and_what_means_nothing_there_is_missing():
    """GPU_UTIL is 0 on every instance of this page: that is not idle."""
    page = DcgmPage()
    report, gpus = read(captured("dcgm-4.9*"), page)
    assert set(gpus) == {H200, *(f"{H200}/{n}" for n in (7, 8, 2, 5))}
    assert not any("gpu_util_ratio" in values for values in gpus.values())
    assert gpus[H200]["gpu_power_watts"] == 388.12
    assert "gpu_power_watts" not in gpus[f"{H200}/7"]
    assert gpus[f"{H200}/8"]["gpu_sm_active_ratio"] == 1.0, "a little above one is clamped"
    assert held(page)[f"{H200}/2"] == ["search/rerank-6d8f-x2/server"]
    assert H200 not in held(page)
    facts = {info.subject.gpu: info.labels for info in report.info}
    assert (facts[f"{H200}/7"]["mig_profile"], facts[f"{H200}/7"]["board"]) == ("1g.18gb", H200)
    assert "mig_profile" not in facts[H200]


def test_the_oldest_labels_and_leaked_blanks():
    page = DcgmPage()
    report, gpus = read(captured("dcgm-2.1*"), page)
    assert gpus == {"GPU-aa11bb22-0000-4000-8000-0000000000f0": {
        "gpu_temperature_celsius": 52, "gpu_memory_used_bytes": 11003 * MIB
    }}  # fmt: skip
    assert report.dropped == 3
    assert list(held(page).values()) == [["batch/old-0/serve"]]


def test_a_page_that_went_through_a_prometheus_names_workloads_not_the_exporter():
    """The third device is nobody's, although its row has the exporter's pod."""
    page = DcgmPage()
    _, gpus = read(captured("dcgm-federated*"), page)
    assert len(gpus) == 3
    assert set(held(page)) == {H100 + "0", H100 + "1"}
    alone = captured("dcgm-federated*").splitlines()[3] + "\n"
    assert "exported" not in alone
    read(alone, page := DcgmPage())
    assert held(page) == {}


def test_only_its_timestamps_moved_is_a_repeat():
    page = DcgmPage()
    read(captured("dcgm-federated*"), page)
    report, gpus = read(captured("dcgm-federated*").replace("1788000012345", "1788000027345"), page, 16.0)
    assert (report.repeated, gpus) == (True, {})


def test_time_slicing_is_one_device_with_several_holders():
    page = DcgmPage()
    report, gpus = read(captured("dcgm-4.5*"), page)
    ((key, values),) = gpus.items()
    assert values["gpu_power_watts"] == 68.21
    assert held(page)[key] == [f"dev/notebook-{n}/main" for n in range(3)]
    assert (report.info[0].labels["pod"], report.info[0].labels["holders"]) == ("", "3")


def test_without_a_uuid_host_and_index_stand_in_and_the_device_says_so():
    report, gpus = read(captured("dcgm-no-uuid*"))
    assert set(gpus) == {"stripped-1:0", "stripped-1:1"}
    assert all("no UUID" in info.labels["identity"] for info in report.info)
    _, gpus = read('DCGM_FI_DEV_GPU_TEMP{gpu="3"} 40\n')
    assert set(gpus) == {"node7:3"}


def test_amds_exporter_speaks_the_same_names():
    page = DcgmPage()
    report, gpus = read(captured("amd*"), page)
    first = gpus["692244000000:0"]
    assert (first["gpu_gr_engine_active_ratio"], first["gpu_power_watts"]) == (0.91, 702)
    assert first["gpu_energy_joules_total"] == pytest.approx(18273645.000123)
    assert held(page) == {"692244000000:0": ["chat/decode-mi-0/vllm"]}
    assert "gpu_sm_active_ratio" not in first, "it has no such figure"
    assert report.info[0].labels["identity"].startswith("serial number")


def test_a_broken_line_costs_itself_only():
    report, gpus = read(captured("dcgm-broken*"))
    assert gpus == {A100 + "2": {"gpu_util_ratio": 0.37, "gpu_power_watts": 88.5}}
    assert report.dropped == 2


# --- time -------------------------------------------------------------------------------------------------------


def test_values_that_are_renewed_every_thirty_seconds_are_samples_every_thirty_seconds():
    """Scraped each second for two minutes: five samples, and the page knows its pace."""
    page = DcgmPage()
    samples = 0
    for t in range(121):
        text = captured("dcgm-3.3.5*").replace("701344823991", str(701344823991 + t // 30))
        samples += bool(read(text, page, float(t))[1])
    assert (samples, page.renews_s, page.renewed_at) == (5, 30.0, 120.0)


def test_shares_of_time_slowed_down_by_cause():
    """From nanoseconds, whatever HELP says; the mask fills in what no counter covers."""
    page = DcgmPage()

    def look(at, thermal, power, brake, reasons):
        lines = (("THERMAL_VIOLATION", thermal), ("POWER_VIOLATION", power), ("CLOCK_THROTTLE_REASONS", reasons))
        text = "".join(f'DCGM_FI_DEV_{name}{{UUID="GPU-a"}} {value}\n' for name, value in lines)
        if brake is not None:
            text += f'DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS{{UUID="GPU-a"}} {brake}\n'
        values = read(text, page, at)[1].get("GPU-a", {})
        return {
            k.removeprefix("gpu_throttled_").removesuffix("ratio").rstrip("_"): round(v, 6) for k, v in values.items()
        }

    assert look(0.0, 0, 0, None, 4) == {}
    assert look(10.0, 0, 9_000_000_000, None, 4) == {"thermal": 0.0, "power": 0.9, "": 0.0}
    assert look(20.0, 5_000_000_000, 9_000_000_001, None, 0x20) == {"thermal": 0.5, "power": 0.0, "": 0.5}
    assert look(30.0, 5_000_000_000, 9_000_000_002, None, 0x80)[""] == 1.0, "a power brake, seen in the mask only"
    assert look(40.0, 5_000_000_000, 9_000_000_003, 0, 0x1)[""] == 0.0
    assert look(50.0, 5_000_000_000, 9_000_000_004, 2_500_000_000, 0x1)["brake"] == 0.25


def test_a_counter_that_falls_says_nothing_for_once():
    page = DcgmPage()
    ratios = []
    for at, ns in ((0.0, 900), (1.0, 1_000_000_900), (2.0, 5), (3.0, 500_000_005)):
        values = read(f'DCGM_FI_DEV_THERMAL_VIOLATION{{UUID="GPU-a"}} {ns}\n', page, at)[1]
        ratios.append(values.get("GPU-a", {}).get("gpu_throttled_ratio"))
    assert ratios == [None, 1.0, None, 0.5]


def test_a_count_within_a_window_grows_once_and_its_fall_is_nothing():
    """Two XIDs; the sticky code and the window's count tell of the same ones."""
    page = DcgmPage()
    events, totals = [], []
    for at, (sticky, count) in enumerate(((0, None), (74, 1), (74, 1), (74, 2), (74, 1), (74, None))):
        text = f'DCGM_FI_DEV_XID_ERRORS{{UUID="GPU-a"}} {sticky}\nDCGM_FI_DEV_GPU_TEMP{{UUID="GPU-a"}} {40 + at}\n'
        if count is not None:
            text += f'DCGM_EXP_XID_ERRORS_COUNT{{UUID="GPU-a",window_size_in_ms="300000",xid="74"}} {count}\n'
        report, gpus = read(text, page, float(at))
        events += [(e.at, e.detail["code"]) for e in report.events]
        totals.append(gpus["GPU-a"]["gpu_xid_total"])
    assert events == [(1.0, "74"), (3.0, "74")]
    assert totals == [0, 1, 1, 2, 2, 2]


# --- bounds -----------------------------------------------------------------------------------------------------


def test_every_field_is_read_in_its_unit():
    """Each name alone on a page becomes its signal, or serves one."""
    for name, field in {**DCGM, **AMD, **NODE}.items():
        report, gpus = read(f'{name}{{UUID="GPU-a",gpu="0",xid="1"}} 0.5\n')
        assert report.dropped == 0, name
        if field.signal in CATALOG:
            assert gpus["GPU-a"][field.signal] == 0.5 * field.factor, name


def test_more_devices_than_can_be_are_cut_and_counted():
    text = "".join(f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-{n}"}} 40\n' for n in range(300))
    report, gpus = read(text)
    assert (len(gpus), report.dropped) == (256, 44)


def test_a_flood_of_holders_is_bounded():
    page = DcgmPage()
    read("".join(f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-a",pod="p{n}"}} 40\n' for n in range(500)), page)
    assert len(page.holders["GPU-a"]) == 64


_labels = st.dictionaries(
    st.sampled_from(
        ["UUID", "uuid", "gpu", "GPU_I_ID", "pod", "exported_pod", "Hostname", "xid", "serial_number", "job"]
    ),
    st.text(st.characters(exclude_characters='"\\\n', exclude_categories=("Cs",)), max_size=8),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(FIELDS)), _labels, st.floats()), max_size=20), st.integers(1, 3))
def test_any_rows_are_read_within_bounds_and_twice_the_same_is_a_repeat(rows, times):
    braces = [",".join(f'{key}="{text}"' for key, text in labels.items()) for _, labels, _ in rows]
    text = "".join(f"{name}{{{inner}}} {value}\n" for (name, _, value), inner in zip(rows, braces, strict=True))
    page = DcgmPage(host="h")
    gpus = read(text, page)[1]
    for values in gpus.values():
        assert all(check_value(name, value) and math.isfinite(value) for name, value in values.items())
    for n in range(times):
        assert read(text, page, 2.0 + n)[0].repeated or not text
