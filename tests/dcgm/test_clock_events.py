"""What the exporter counts by clock event within its window becomes shares of what it counted."""

import pytest

from gpuwatch.sources.gpu.dcgm import DcgmPage


def _page(**counts):
    return "".join(
        f'DCGM_EXP_CLOCK_EVENTS_COUNT{{UUID="GPU-a",gpu="0",window_size_in_ms="300000",clock_event="{name}"}} {n}\n'
        for name, n in counts.items()
    ).encode()


def _row(page):
    frame = DcgmPage().read(page, 1_764_000_000.0).frames[0]
    return dict(zip(frame.names, frame.values[0].tolist(), strict=True))


def test_a_thermal_limit_that_was_seen_has_a_share():
    row = _row(_page(gpu_idle=2, sw_thermal=5, hw_thermal=1, power_cap=2))
    assert row["gpu_throttled_thermal_ratio"] == pytest.approx(0.5)
    assert row["gpu_throttled_ratio"] == pytest.approx(0.5)
    assert row["gpu_throttled_power_ratio"] == pytest.approx(0.2)


def test_idle_and_a_power_cap_are_no_slowdown():
    row = _row(_page(gpu_idle=3, power_cap=6))
    assert row["gpu_throttled_ratio"] == 0.0
    assert row["gpu_throttled_thermal_ratio"] == 0.0


def test_an_xid_within_the_window_is_told_at_the_first_page_and_once():
    page = DcgmPage()
    text = b'DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-a",gpu="0",window_size_in_ms="300000",xid="79"} 1\n'
    told = [[e.detail["code"] for e in page.read(text + b"# %d\n" % n, 1_764_000_000.0 + n).events] for n in range(3)]
    assert told == [["79"], [], []]
