"""The modelled device as a dcgm-exporter page: line format, units, what stock counters leave out, and its slowness."""

import re
import subprocess

import pytest

from engine_shim.telemetry.gpu_page import Gpu, GpuPage

READINGS = {
    "gpu_sm_clock_hertz": 1.98e9, "gpu_power_watts": 412.5, "gpu_energy_joules_total": 1234.5678, "gpu_util_ratio": 0.97,
    "gpu_memory_used_bytes": 40 * 1024**3, "gpu_memory_free_bytes": 40 * 1024**3, "gpu_gr_engine_active_ratio": 0.91,
    "gpu_sm_active_ratio": 0.88, "gpu_sm_occupancy_ratio": 0.3, "gpu_tensor_active_ratio": 0.25,
    "gpu_dram_active_ratio": 0.7, "gpu_xid_last_code": 0.0,
}  # fmt: skip

# The exporter's line: NAME{gpu=,UUID=,pci_bus_id=,device=,modelName=,Hostname=,<attributes>} value; integers as they
# are, doubles with six decimals.
LINE = re.compile(
    r'^(DCGM_FI_\w+)\{gpu="\d+",UUID="GPU-[0-9a-f-]+",pci_bus_id="[0-9A-F:.]+",device="nvidia\d+",'
    r'modelName="[^"]+",Hostname="[^"]+",DCGM_FI_DRIVER_VERSION="[\d.]+"\} (\d+|\d+\.\d{6})$'
)


def page(counters: str = "full") -> GpuPage:
    return GpuPage(Gpu("GPU-01234567-89ab-cdef-0123-456789abcdef", "NVIDIA H100 80GB HBM3"), counters=counters)


def values(text: bytes) -> dict[str, float]:
    found = {}
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            found[match[1]] = float(match[2])
    return found


def test_lines_look_like_the_exporters():
    made = page()
    made.update(0.0, READINGS)
    assert values(made.render()) == {
        "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_POWER_USAGE": 412.5, "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1234568, "DCGM_FI_DEV_FB_USED": 40960, "DCGM_FI_DEV_FB_FREE": 40960,
        "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.91, "DCGM_FI_PROF_SM_ACTIVE": 0.88,
        "DCGM_FI_PROF_SM_OCCUPANCY": 0.3, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25, "DCGM_FI_PROF_DRAM_ACTIVE": 0.7,
    }  # fmt: skip


def test_stock_counters_have_no_sm_activity():
    made = page("stock")
    made.update(0.0, READINGS)
    names = values(made.render()).keys()
    assert "DCGM_FI_PROF_DRAM_ACTIVE" in names
    assert not {"DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY"} & names


def test_a_stock_page_is_renewed_every_thirty_seconds():
    made = page("stock")
    shown = []
    for second in range(61):
        made.update(float(second), READINGS | {"gpu_power_watts": 100.0 + second})
        shown.append(values(made.render())["DCGM_FI_DEV_POWER_USAGE"])
    assert shown == [100.0] * 30 + [130.0] * 30 + [160.0]


def test_what_is_not_known_is_absent():
    made = page()
    assert made.render() == b""
    made.update(0.0, {"gpu_power_watts": 100.0, "gpu_sm_active_ratio": float("nan")})
    assert values(made.render()) == {"DCGM_FI_DEV_POWER_USAGE": 100.0}


def test_prometheus_reads_it():
    """Parses; lints about names and counters without _total are the exporter's own habit."""
    made = page()
    made.update(0.0, READINGS)
    done = subprocess.run(["promtool", "check", "metrics"], input=made.render(), capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert b"error while linting" not in done.stderr


def test_another_set_of_counters_is_refused():
    with pytest.raises(ValueError, match="full or stock, got 'some'"):
        page("some")
